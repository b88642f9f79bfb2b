"""growth: verdicts on made-up series, with the reason and the time that would settle it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mcpd.shm.leaks.growth import FLAT, GROWING, UNTOLD, Finding, judge, judge_figure
from mcpd.shm.leaks.report import document, render
from mcpd.shm.leaks.sampling import FIGURES, Series
from mcpd.shm.leaks.smaps import ANONYMOUS, FILES, HEAP, KINDS, SHARED, STACKS, sum_kinds

MB = 1e6
NO_KINDS = dict.fromkeys(KINDS, 0)


def finding(name: str, value: Callable[[int], float], length: int = 300) -> Finding:
    times = [float(number) for number in range(length)]
    return judge_figure(name, FIGURES[name], times, [value(number) for number in range(length)])


def noisy(height: float, seed: int = 1) -> Callable[[], float]:
    source = random.Random(seed)
    return lambda: source.gauss(0, height)


def test_growth_is_said_with_its_rate_and_its_kind() -> None:
    noise = noisy(10_000)
    series = Series("worker yolo/1 (7)", 7)
    for second in range(1000):
        series.add(float(second), {"private": 100 * MB + second * 3.1 * MB / 3600 + noise()})
        series.kinds.append((float(second), {**NO_KINDS, HEAP: second * 900, FILES: second * 9}))
    found = judge(series)
    assert found.verdict == GROWING
    (sentence,) = found.sentences()
    assert sentence.startswith("private memory growing 3.")
    assert " MB/h (±0." in sentence
    assert sentence.endswith(", mostly heap")
    only = found.findings[0]
    assert only.trend.low * 3600 <= 3.1 * MB <= only.trend.high * 3600


def test_what_stays_is_flat() -> None:
    assert finding("private", lambda _: 50 * MB).verdict == FLAT
    assert finding("fds", lambda _: 12).verdict == FLAT


def test_what_could_be_either_says_how_long_would_tell() -> None:
    noise = noisy(2 * MB)
    found = finding("private", lambda _: 100 * MB + noise(), 60)
    assert found.verdict == UNTOLD
    assert found.needed_s > 60
    assert "watch for" in found.sentence()


def test_two_readings_are_too_short() -> None:
    found = finding("fds", lambda _: 3, 2)
    assert found.verdict == UNTOLD
    assert found.reason == "too short: 2 readings"
    assert found.needed_s > 8


def test_one_step_is_flat_and_told_and_two_are_not_flat() -> None:
    noise = noisy(2000)
    one = finding("private", lambda n: (50 + 8 * (n > 100)) * MB + noise())
    two = finding("private", lambda n: (50 + 8 * (n > 100) + 8 * (n > 200)) * MB + noise())
    assert one.verdict == FLAT
    assert one.reason.startswith("but for one step: +8.0 MB at 2 min")
    assert two.verdict == UNTOLD
    assert two.reason.startswith("it rose in 2 steps")


def test_growth_that_ends_is_not_called_growth() -> None:
    noise = noisy(20_000)
    found = finding("private", lambda n: 50 * MB + min(n, 120) * MB + noise())
    assert found.verdict == UNTOLD
    assert "and not since" in found.reason


def test_a_collector_that_gives_back_at_last_is_flat() -> None:
    noise = noisy(5000)
    found = finding("private", lambda n: 50 * MB + (n % 23) * 20_000 + noise(), 3600)
    assert found.verdict == FLAT


def test_the_start_is_left_out() -> None:
    series = Series("x", 1)
    for second in range(100):
        series.add(float(second), {"private": 50 * MB + min(second, 15) * 10 * MB})
    assert judge(series).verdict == FLAT
    assert judge(series, warm_up_s=0).verdict == UNTOLD


def test_memory_that_processes_share_is_named_by_its_neighbours() -> None:
    smaps = b""
    for start, end, access, name in (
        ("4000000", "4021000", "rw-p", "[heap]"),
        ("7f0000000000", "7f0000021000", "rw-p", ""),
        ("7f0000021000", "7f0004000000", "---p", ""),
        ("7f1000000000", "7f1000001000", "---p", ""),
        ("7f1000001000", "7f1000801000", "rw-p", ""),
        ("7f2000000000", "7f2000100000", "rw-p", ""),
        ("7f3000000000", "7f3000100000", "rw-s", "/memfd:mcpd:payload:cam0 (deleted)"),
        ("7f4000000000", "7f4000100000", "rw-p", "/usr/lib/libc.so.6"),
        ("7ffc00000000", "7ffc00021000", "rw-p", "[stack]"),
    ):
        smaps += f"{start}-{end} {access} 00000000 00:01 7 {name}\n".encode()
        smaps += b"Rss: 8 kB\nPrivate_Dirty: 4 kB\nSwap: 0 kB\nVmFlags: rd wr\n"
    assert sum_kinds(smaps) == {
        HEAP: 8192,
        STACKS: 8192,
        ANONYMOUS: 3 * 4096,  # with the two that are set aside
        SHARED: 8192,
        FILES: 4096,
    }


def test_the_page_has_its_plots_and_fetches_nothing() -> None:
    series = Series("a <b> & c (7)", 7)
    for second in range(100):
        series.add(float(second), {"private": 50 * MB + second * MB, "fds": 3.0})
    judged = [judge(series)]
    page = render(judged, span_s=100, interval_s=1)
    assert page.count("<svg") == 2
    assert "a &lt;b&gt; &amp; c (7)" in page
    assert "private memory growing" in page
    for outside in ("http:", "https:", "src=", "href=", "@import", "url("):
        assert outside not in page
    assert "prefers-color-scheme: dark" in page
    told = document(judged, span_s=100, interval_s=1)
    assert told["verdict"] == GROWING
    assert told["processes"][0]["findings"][0]["per_hour"] == pytest.approx(3600 * MB, rel=0.01)
