"""Lines come out whole and bounded; nothing but the protocol gets on the wire."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.mcp_adapter.stdio import MAX_LINE_NBYTES, Lines


def lines_of(*pieces: bytes) -> list[bytes]:
    lines = Lines()
    found: list[bytes] = []
    for piece in pieces:
        lines.feed(piece)
        found += iter(lines.next, None)
    return found


def test_lines_are_kept_apart() -> None:
    assert lines_of(b"one\ntwo\n\nthr", b"ee\n") == [b"one\n", b"two\n", b"\n", b"three\n"]


def test_half_a_line_does_not_come_out() -> None:
    assert lines_of(b"one\ntwo") == [b"one\n"]


@given(st.binary(max_size=200), st.integers(1, 20))
def test_lines_are_the_same_however_they_arrive(sent: bytes, size: int) -> None:
    pieces = (sent[start : start + size] for start in range(0, len(sent), size))
    assert b"".join(lines_of(*pieces)) == sent[: sent.rfind(b"\n") + 1]


def test_longest_line_passes_and_a_longer_one_is_dropped() -> None:
    longest = b"x" * (MAX_LINE_NBYTES - 1) + b"\n"
    pieces = [b"y" * 65536] * 300
    found = lines_of(longest, b"x" + longest, *pieces, b"\nnext\n")
    assert found == [longest, b"", b"", b"next\n"]


def test_line_that_is_too_long_is_not_kept() -> None:
    lines = Lines()
    tracemalloc.start()
    try:
        for _ in range(400):
            lines.feed(b"y" * 65536)
            assert lines.next() is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MAX_LINE_NBYTES


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
