"""Lines come off a descriptor whole, bounded, and whatever it is; nothing else gets on the wire."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mcpd.mcp_adapter.stdio import MAX_LINE_NBYTES, UNREADABLE, WireInput, WireOutput


def lines_of(sent: bytes) -> list[str]:
    reading, writing = os.pipe()

    def send() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(sent)

    sender = threading.Thread(target=send)
    sender.start()
    wire = WireInput(reading)
    lines = list(iter(wire.readline, ""))
    assert wire.readline() == ""
    sender.join()
    os.close(reading)
    return lines


def test_lines_are_kept_apart() -> None:
    assert lines_of(b"one\ntwo\n\nthree\n") == ["one\n", "two\n", "\n", "three\n"]


def test_half_a_line_at_the_end_is_dropped() -> None:
    assert lines_of(b"one\ntwo") == ["one\n"]


def test_bytes_that_are_no_text_become_marks() -> None:
    assert lines_of(b"a\xff\xfe\n") == ["a\ufffd\ufffd\n"]


def test_longest_line_passes_and_a_longer_one_is_dropped() -> None:
    longest = b"x" * (MAX_LINE_NBYTES - 1) + b"\n"
    sent = longest + b"x" + longest + b"y" * 20_000_000 + b"\nnext\n"
    assert lines_of(sent) == [longest.decode(), UNREADABLE, UNREADABLE, "next\n"]


def test_socket_whose_other_end_was_reset_has_ended() -> None:
    left, right = socket.socketpair()
    right.send(b"never read")
    left.send(b"one\n")
    wire = WireInput(right.fileno())
    assert wire.readline() == "one\n"
    left.close()
    assert wire.readline() == ""
    right.close()


def test_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\n")
    with open(tmp_path / "in") as file:
        assert WireInput(file.fileno()).readline() == "one\n"


def test_closed_output_is_told_once_per_write() -> None:
    reading, writing = os.pipe()
    told: list[str] = []
    wire = WireOutput(writing, on_closed=lambda: told.append("closed"))
    assert wire.write("gröt\n") == 5
    assert os.read(reading, 100).decode() == "gröt\n"
    os.close(reading)
    wire.write("more\n")
    assert told == ["closed"]
    os.close(writing)


@pytest.mark.parametrize("stderr_open", [True, False])
def test_what_is_printed_stays_off_the_wire(stderr_open: bool) -> None:
    code = (
        "import os, sys, subprocess\n"
        "from mcpd.mcp_adapter.stdio import take_wire\n"
        + ("" if stderr_open else "os.close(2)\n")
        + "wire_in, wire_out = take_wire()\n"
        "print('from print', flush=True)\n"
        "os.write(1, b'from C')\n"
        "subprocess.run(['echo', 'from a child'])\n"
        "assert sys.stdin.read() == ''\n"
        "os.write(wire_out, os.read(wire_in, 100))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], input=b"protocol", capture_output=True, timeout=30
    )
    assert done.stdout == b"protocol"
    if stderr_open:
        assert done.returncode == 0, done.stderr
        assert b"from print" in done.stderr
        assert b"from C" in done.stderr
        assert b"from a child" in done.stderr
