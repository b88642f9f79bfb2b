"""Numbers as people read them, and tables that fit."""

from __future__ import annotations

import pytest

from mcpd.cli.render import (
    PLAIN_WIDTH,
    format_bytes,
    format_clock,
    format_duration,
    format_size,
    print_table,
)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (6 << 20, "6.0 MiB"),
        (3 << 60, "3072 PiB"),
    ],
)
def test_bytes_are_shown_in_their_largest_unit(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (0.0042, "4.2 ms"),
        (1.25, "1.2 s"),
        (75, "1m 15s"),
        (3 * 3600 + 120, "3h 2m"),
        (90061, "1d 1h"),
        (-75, "-1m 15s"),
    ],
)
def test_durations_are_shown_in_two_units_at_most(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "00:00.000"), (75.5, "01:15.500"), (3675.25, "1:01:15.250"), (-0.04, "-00:00.040")],
)
def test_clock_times_have_milliseconds(seconds: float, text: str) -> None:
    assert format_clock(seconds) == text


def test_size_of_a_stream_without_images_is_a_dash() -> None:
    assert format_size(0, 0, "") == "-"
    assert format_size(64, 48, "i420") == "64x48 i420"


def test_table_shows_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("boxes", ("name", ">box"), [("a", "[red] [1 2 3 4]")])
    assert "[red] [1 2 3 4]" in capsys.readouterr().out


def test_table_without_a_terminal_is_no_wider_than_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table("wide", ("a", "b"), [("x" * 150, "y" * 150)])
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= PLAIN_WIDTH


def test_table_in_a_narrow_terminal_folds_and_loses_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name, owner, why = "segment mcpd:payload:cam0", "mcpd-source 14795", "live: process 14795 lives"
    columns = ("what", ">size", ">age", "owner", "verdict", "why")
    print_table("leases", columns, [(name, "10.6 MiB", "20.1 s", owner, "in use", why)])
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert name in "\n".join(lines)
    assert set((owner + " " + why).split()) <= set(" ".join(lines).split())


def test_table_without_rows_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("streams", ("name",), [])
    assert capsys.readouterr().out == "streams: none\n\n"
