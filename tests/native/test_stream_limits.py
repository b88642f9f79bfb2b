"""What the stream refuses in Python, and what it says then."""

from __future__ import annotations

import errno
import math
import os
import struct
from collections.abc import Callable

import pytest

from mcpd.native import _core
from tests.native.streams import SLOT_NBYTES, TestStream, mappings, new_object, next_slot

META = 64  # struct mcpd_meta in a slot's header
DESCRIPTION = 256


def headers_offset(nslots: int) -> int:
    return _core.writer_control_nbytes(nslots) - nslots * 4096


def test_sizes_follow_from_the_geometry() -> None:
    assert _core.payload_nbytes(8, 4096) == 8 * 4096
    assert _core.writer_control_nbytes(8) == 4096 + 4096 + 8 * 4096
    assert _core.writer_control_nbytes(4096) == 4096 + 8 * 4096 + 4096 * 4096
    assert _core.reader_control_nbytes(1) == 4096
    assert _core.reader_control_nbytes(_core.MAX_PINS) == 4096
    for nslots, slot_nbytes in [(1, 4096), (4097, 4096), (8, 0), (8, 100), (8, 2**41)]:
        with pytest.raises(ValueError, match="out of bounds"):
            _core.payload_nbytes(nslots, slot_nbytes)
    with pytest.raises(ValueError, match="out of bounds"):
        _core.reader_control_nbytes(_core.MAX_PINS + 1)
    with pytest.raises(OverflowError):
        _core.writer_control_nbytes(2**40)


def test_an_object_smaller_than_the_geometry_is_refused_before_it_is_touched() -> None:
    short = new_object("short", 4096)
    try:
        with pytest.raises(OSError, match="Invalid argument") as caught:
            _core.WriterControl(short, 8)
        assert caught.value.errno == errno.EINVAL
        with pytest.raises(OSError, match="Invalid argument"):
            _core.Writer(short, short, short, stream_id=1, generation=1, nslots=8, slot_nbytes=4096)
        assert mappings("short") == []
    finally:
        os.close(short)


def test_a_control_object_of_another_version_is_refused() -> None:
    with TestStream() as stream:
        os.pwrite(stream.control_fd, struct.pack("<I", _core.ABI_VERSION + 1), 8)
        with pytest.raises(OSError, match="not one of this version") as caught:
            stream.attach()
        assert caught.value.errno == errno.EPROTONOSUPPORT


def test_a_reader_too_many_is_refused_with_its_errno(stream: TestStream) -> None:
    stream.attach(max_pins=4)  # 8 slots: 1 retained, 2 holds, 1 spare
    for policy, max_pins, code in [
        (_core.POLICY_LATEST, 1, errno.ENOSPC),
        (_core.POLICY_FIFO, 1, errno.EINVAL),
        (_core.POLICY_LATEST, 0, errno.EINVAL),
    ]:
        with pytest.raises(OSError, match="cannot admit the reader") as caught:
            stream.writer.add_reader(2, stream.readers[0].control_fd, 0, max_pins, policy)
        assert caught.value.errno == code
    with pytest.raises(OSError, match="cannot admit the reader") as caught:
        stream.writer.add_reader(1, stream.readers[0].control_fd, 0, 1, _core.POLICY_LATEST)
    assert caught.value.errno == errno.EEXIST
    with pytest.raises(FileNotFoundError):
        stream.writer.remove_reader(77)


def test_holds_and_pins_are_limited(stream: TestStream) -> None:
    reader = stream.attach(max_pins=1)
    held = [stream.acquire(), stream.acquire()]
    with pytest.raises(BufferError, match="2 slots"):
        stream.writer.acquire()
    held[0].publish()
    got = next_slot(reader)
    held[1].publish()
    with pytest.raises(BufferError, match="all 1 pins"):
        reader.reader.next()
    got.close()
    assert next_slot(reader).seq == 2


def test_time_outs_are_seconds_or_none(stream: TestStream) -> None:
    reader = stream.attach().reader
    assert reader.next(0) is None
    assert reader.next(timeout_s=0.001) is None
    for bad in (-1, -0.5, math.nan):
        with pytest.raises(ValueError, match="timeout_s"):
            reader.next(bad)
        with pytest.raises(ValueError, match="timeout_s"):
            stream.writer.acquire(bad)
    with pytest.raises(TypeError):
        reader.next("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected"):
        reader.next(timeout=1)  # type: ignore[call-arg]


def test_the_end_comes_after_what_was_published(stream: TestStream) -> None:
    lossless, latest = stream.attach(_core.POLICY_LOSSLESS), stream.attach()
    slot = stream.acquire()
    for _ in range(3):
        stream.publish()
    assert latest.reader.ended() == _core.END_LIVE
    stream.control.end(_core.END_REVOKED)
    stream.writer.end(_core.END_CLOSED)
    assert [next_slot(lossless).seq for _ in range(3)] == [1, 2, 3]
    assert next_slot(latest).seq == 3
    for call in (lossless.reader.next, latest.reader.next, stream.writer.acquire, slot.publish):
        with pytest.raises(_core.StreamEnded) as caught:
            call()
        assert caught.value.args == (_core.END_REVOKED,)
    assert latest.reader.ended() == _core.END_REVOKED
    for bad in (_core.END_LIVE, 99):
        with pytest.raises(ValueError, match="reason"):
            stream.writer.end(bad)
        with pytest.raises(ValueError, match="reason"):
            stream.control.end(bad)


def test_what_is_closed_says_so(stream: TestStream) -> None:
    reader = stream.attach()
    reader.reader.close()
    reader.reader.close()
    stream.writer.close()
    calls: list[Callable[[], object]] = [
        reader.reader.next,
        reader.reader.arm,
        reader.reader.fileno,
        reader.reader.stats,
        stream.writer.acquire,
        stream.writer.stats,
        lambda: stream.writer.end(_core.END_CLOSED),
    ]
    stream.control.close()
    reader.control.close()
    for call in [*calls, stream.control.stats, reader.control.pins]:
        with pytest.raises(ValueError, match="closed"):
            call()


def spoil(stream: TestStream, offset: int, value: bytes) -> None:
    os.pwrite(stream.control_fd, value, offset)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        pytest.param("queue", struct.pack("<Q", 1 << 16 | 8), id="slot index"),
        pytest.param("queue", struct.pack("<Q", 2 << 16), id="queue entry"),
        pytest.param("state", struct.pack("<Q", 1 << 16 | 1), id="slot state"),
        pytest.param("meta", struct.pack("<Q", 77), id="generation"),
        pytest.param("nbytes", struct.pack("<Q", SLOT_NBYTES + 1), id="bytes in use"),
        pytest.param("ntensors", struct.pack("<I", 17), id="number of tensors"),
    ],
)
def test_a_control_object_that_lies_gives_an_error(
    stream: TestStream, where: str, value: bytes
) -> None:
    reader = stream.attach()
    slot = stream.acquire()
    slot.publish()
    header = headers_offset(stream.nslots) + 4096 * slot.index
    offset = {
        "queue": 4096 + 8,
        "state": header,
        "meta": header + META,
        "nbytes": header + META + 16,
        "ntensors": header + DESCRIPTION + 28,
    }[where]
    spoil(stream, offset, value)
    with pytest.raises(OSError, match="inconsistent") as caught:
        reader.reader.next(0)
    assert caught.value.errno == errno.EBADMSG
    assert reader.control.pins() == []
