"""What is published or acquired while a resize runs: nothing, so that no number is given twice."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from mcpd.shm import AlreadyExists, InvalidRequest, LimitExceeded, WouldBlock, connect
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.descriptors import no_descriptor_leaked
from tests.support.numbered import write_numbered
from tests.support.raw import RawSession


def test_frame_published_in_the_middle_of_a_resize_is_an_error_that_changes_nothing(
    bare_daemon: RunningDaemon,
) -> None:
    with RawSession(bare_daemon.socket) as raw, connect(bare_daemon.socket) as client:
        spec = {"slots": 8, "slot_nbytes": 4096}
        made = raw.ask(type="create_stream", name="raw", spec=spec)["result"]
        raw.ask(type="seal_stream", stream=made["stream"], generation=1)
        ask = {"type": "resize_stream", "stream": made["stream"], "spec": spec}
        wrong = raw.ask(**ask, first_seq=7)
        assert (wrong["code"], wrong["message"]) == (
            "invalid",
            "stream 'raw': first_seq is 7; its next frame is 1",
        )
        assert raw.ask(**ask, first_seq=1)["result"]["generation"] == 2
        again = raw.ask(**ask, first_seq=1)
        assert "is being resized already" in again["message"]
        close = raw.ask(type="close_stream", stream=made["stream"], generation=2)
        assert close["type"] == "reply"
        assert raw.ask(**ask, first_seq=1)["result"]["generation"] == 3  # never twice
        assert raw.ask(type="seal_stream", stream=made["stream"], generation=3)["type"] == "reply"
        gone = raw.ask(type="seal_stream", stream=made["stream"], generation=9)
        assert gone["code"] == "not_found"
        with pytest.raises(AlreadyExists):
            client.create_stream("raw", slot_nbytes=64)


def test_frame_published_while_readers_are_brought_over_fails_the_resize(
    bare_daemon: RunningDaemon,
) -> None:
    with connect(bare_daemon.socket) as writing, connect(bare_daemon.socket) as reading:
        stream = writing.create_stream("cam0", width=64, height=16, format="gray8", slots=16)
        reader = reading.open_stream("cam0", policy="lossless")
        core = stream._now.core

        def publish_nevertheless() -> None:
            core.freeze(False)
            core.acquire(0).publish()

        with no_descriptor_leaked():
            setattr(stream, "on_reader", publish_nevertheless)  # noqa: B010
            with pytest.raises(InvalidRequest, match="first_seq is 1; its next frame is 2"):
                stream.resize(width=32)
        setattr(stream, "on_reader", lambda: None)  # noqa: B010
        assert stream.generation == 1
        stream.acquire(0).publish()
        stream.resize(width=32)
        stream.acquire(0).publish()
        seen = []
        for _ in range(3):
            with reader.next(10) as frame:
                seen.append((frame.generation, frame.seq))
        assert seen == [(1, 1), (1, 2), (3, 3)]  # what was given to the failed one is not again


def test_nothing_is_published_while_a_resize_runs_and_who_acquires_waits(
    bare_daemon: RunningDaemon,
) -> None:
    with connect(bare_daemon.socket) as writing, connect(bare_daemon.socket) as reading:
        stream = writing.create_stream("cam0", width=64, height=16, format="gray8", slots=16)
        reader = reading.open_stream("cam0", policy="lossless")
        write_numbered(stream)
        before = stream.acquire(0)
        errors: list[Exception] = []
        waiting = threading.Thread(target=lambda: stream.acquire(30).publish())

        def attempt(call: Callable[[], object]) -> None:
            try:
                call()
            except (InvalidRequest, WouldBlock) as error:
                errors.append(error)

        def meanwhile() -> None:
            attempt(before.publish)
            attempt(lambda: stream.acquire(0))
            waiting.start()
            wait_until(lambda: stream.stats()["blocked_since_ns"] > 0, 10, "it waits")

        setattr(stream, "on_reader", meanwhile)  # noqa: B010
        stream.resize(width=32)
        waiting.join(30)
        assert [type(error) for error in errors] == [InvalidRequest, WouldBlock]
        assert "slot 1 cannot be published: the stream is being resized" in str(errors[0])
        seen = []
        for _ in range(2):
            with reader.next(10) as frame:
                seen.append((frame.generation, frame.seq))
        assert seen == [(1, 1), (2, 2)]


def test_resize_that_fails_lets_go_on_who_waits(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as writing, connect(bare_daemon.socket) as reading:
        stream = writing.create_stream("cam0", width=64, height=16, format="gray8", slots=16)
        reading.open_stream("cam0", policy="lossless")
        before = stream.acquire(0)
        waiting = threading.Thread(target=lambda: stream.acquire(30).publish())

        def refuse() -> None:
            waiting.start()
            wait_until(lambda: stream.stats()["blocked_since_ns"] > 0, 10, "it waits")
            raise LimitExceeded("no")

        setattr(stream, "on_reader", refuse)  # noqa: B010
        with pytest.raises(LimitExceeded, match="no"):
            stream.resize(width=32)
        waiting.join(30)
        assert before.publish() == 2
        assert (stream.generation, stream.stats()["published"]) == (1, 2)
