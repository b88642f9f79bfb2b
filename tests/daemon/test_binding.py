"""One stream that a worker works on, when things go wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import cast

import pytest

from mcpd.daemon.worker.binding import Binding, Counters, ResultsWriter
from mcpd.daemon.worker.pipeline import ModelRunner
from mcpd.daemon.worker.serving import Serving
from mcpd.shm import StreamClosed
from mcpd.shm.bundle import describe_frame
from mcpd.shm.messages import Serve, StreamEndedNote
from tests.support.streams import LocalStream

REQUEST = Serve(binding=1, stream="frames", results_name="frames@none", frames="lossless")


class BrokenRunner:
    """A model whose run ends the process's loop: no frame, but mcpd itself is at fault."""

    result_nbytes = 0

    def run(self, frame: object) -> object:
        raise KeyboardInterrupt


@pytest.fixture
def frames() -> Iterator[LocalStream]:
    with LocalStream(describe_frame("gray8", 64, 4)) as made:
        yield made


@pytest.fixture
def results() -> Iterator[LocalStream]:
    with LocalStream(slot_nbytes=4096) as made:
        yield made


def bind(frames: LocalStream, results: LocalStream) -> Binding:
    """A binding of the two."""
    return Binding(REQUEST, frames.attach("lossless"), cast(ResultsWriter, results.writer), 1)


def test_frames_that_are_taken_away_end_the_results_and_nothing_else(
    frames: LocalStream, results: LocalStream
) -> None:
    reader = results.attach("lossless")
    runner = cast(ModelRunner, BrokenRunner())
    binding = bind(frames, results)
    descriptors = binding.descriptors
    assert not binding.step(runner, Counters())
    assert not binding.arm()
    # Its control object does not say so: a writer could have put that back.
    frames.session.streams.tell(StreamEndedNote(stream=1, reason="revoked"))
    binding.disarm()
    assert binding.arm()
    binding.disarm()
    binding.step(runner, Counters())
    assert binding.done
    with pytest.raises(StreamClosed) as caught:
        reader.next(5)
    assert caught.value.reason == "revoked"
    binding.close()
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_results_of_a_worker_that_fails_end_as_those_of_one_that_dies(
    frames: LocalStream, results: LocalStream
) -> None:
    reader = results.attach("lossless")
    serving = Serving(1)
    serving._add(bind(frames, results))
    with frames.writer.acquire(5) as slot:
        slot.planes[0][...] = 1
    with pytest.raises(KeyboardInterrupt):
        serving.run(frames.session.as_connection(), cast(ModelRunner, BrokenRunner()))
    with pytest.raises(StreamClosed) as caught:
        reader.next(5)
    assert caught.value.reason == "writer_died"
