"""Encoded payloads: exactly the bytes that were written, of any length that fits."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from mcpd.shm import Client
from mcpd.shm.bundle import describe_frame
from mcpd.shm.errors import InvalidRequest, LimitExceeded
from mcpd.shm.formats import ENCODED
from mcpd.shm.frame import FLAG_KEYFRAME, FLAG_PARTIAL
from tests.support.streams import LocalStream


def noise(nbytes: int) -> NDArray[np.uint8]:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)


@pytest.mark.parametrize("format", sorted(ENCODED))
def test_payloads_of_varying_length_come_back_as_they_were(format: str) -> None:
    with LocalStream(describe_frame(format, 641, 481), slot_nbytes=4096) as stream:
        reader = stream.attach("lossless")
        for nbytes in (4096, 1, 7, 4095):
            data = noise(nbytes).tobytes()
            with stream.writer.acquire(0) as slot:
                slot.flags = FLAG_PARTIAL
                slot.write_encoded(data, keyframe=nbytes == 7)
            with reader.next(0) as frame:
                assert frame.encoded() == data
                assert (frame.nbytes, frame.planes, frame.keyframe) == (nbytes, (), nbytes == 7)
                assert (frame.format, frame.width, frame.flags & 16) == (format, 641, FLAG_PARTIAL)


def test_payload_may_be_any_contiguous_bytes() -> None:
    with LocalStream(describe_frame("h264", 64, 48), slot_nbytes=4096) as stream:
        reader = stream.attach("lossless")
        for data in (bytearray(b"abcd"), memoryview(b"abcd"), np.frombuffer(b"abcd", "<u2")):
            with stream.writer.acquire(0) as slot:
                slot.write_encoded(cast(Any, data), keyframe=True)
                slot.write_encoded(cast(Any, data))
            with reader.next(0) as frame:
                assert (frame.encoded(), frame.keyframe) == (b"abcd", False)
        with stream.writer.acquire(0) as slot:
            with pytest.raises(InvalidRequest, match="not contiguous"):
                slot.write_encoded(memoryview(b"abcdef")[::2])
            slot.abandon()


def test_copy_of_a_payload_is_the_readers_own() -> None:
    with LocalStream(describe_frame("jpeg", 64, 48), slot_nbytes=4096) as stream:
        reader = stream.attach()
        slot = stream.writer.acquire(0)
        kept = slot.buffer
        slot.write_encoded(b"first")
        slot.publish()
        with reader.next(0) as frame:
            copied = frame.encoded()
            kept[:5] = b"other"
            assert (copied, bytes(frame.buffer)) == (b"first", b"other")
        kept.release()


def test_payload_that_cannot_be_is_refused_and_nothing_is_changed() -> None:
    with (
        LocalStream(describe_frame("jpeg", 64, 48), slot_nbytes=4096) as stream,
        stream.writer.acquire(0) as slot,
    ):
        slot.write_encoded(b"kept", keyframe=True)
        with pytest.raises(LimitExceeded, match="has 4097 bytes, the slot has 4096"):
            slot.write_encoded(bytes(4097))
        with pytest.raises(InvalidRequest, match="of 0 bytes"):
            slot.write_encoded(b"")
        assert (slot.nbytes, slot.flags, bytes(slot.buffer[:4])) == (4, FLAG_KEYFRAME, b"kept")


def test_payload_needs_an_encoded_format() -> None:
    with LocalStream(describe_frame("rgb24", 64, 48)) as stream:
        reader = stream.attach()
        with (
            stream.writer.acquire(0) as slot,
            pytest.raises(InvalidRequest, match="slot holds rgb24, which is not an encoded"),
        ):
            slot.write_encoded(b"x")
        stream.writer.acquire(0).publish()
        with reader.next(0) as frame, pytest.raises(InvalidRequest, match="holds rgb24 pixels"):
            frame.encoded()


def test_access_units_of_any_length_go_through_the_daemon(client: Client) -> None:
    with (
        client.create_stream("units", format="h264", width=64, height=48, slot_nbytes=10_000) as w,
        client.open_stream("units", policy="lossless") as reader,
    ):
        for nbytes in (10_000, 3, 5000):
            with w.acquire(5) as slot:
                slot.write_encoded(noise(nbytes).tobytes(), keyframe=nbytes == 10_000)
            with reader.next(5) as frame:
                assert frame.encoded() == noise(nbytes).tobytes()
                assert frame.keyframe == (nbytes == 10_000)
