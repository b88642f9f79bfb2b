"""Threads, event loops and signals around a stream in Python."""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Callable

import pytest

from mcpd.native import _core
from tests.native.streams import PATIENCE_S, TestReader, TestStream, next_slot, wait_until


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Runs the call in a thread; its result or exception is the list's only item."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except (ValueError, _core.StreamEnded) as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def asleep(reader: TestReader) -> bool:
    return bool(reader.control.stats()["asleep"])


def test_a_reader_waits_without_the_gil(stream: TestStream) -> None:
    reader = stream.attach()
    thread, outcome = in_thread(lambda: next_slot(reader, PATIENCE_S).seq)
    wait_until(lambda: asleep(reader))
    stream.publish()
    thread.join()
    assert outcome == [1]
    assert stream.writer.stats()["wakes"] == 1
    stats = reader.control.stats()
    assert (stats["wakeups"], stats["received"], stats["asleep"]) == (1, 1, 0)


def test_a_writer_waits_for_a_lossless_reader(stream: TestStream) -> None:
    reader = stream.attach(_core.POLICY_LOSSLESS)
    for _ in range(stream.nslots):
        stream.publish()
    assert stream.writer.acquire(0) is None
    assert stream.writer.acquire(0.001) is None
    thread, outcome = in_thread(lambda: stream.writer.acquire(PATIENCE_S))
    wait_until(lambda: stream.writer.stats()["would_block"] == 3)
    next_slot(reader).close()
    thread.join()
    assert isinstance(outcome[0], _core.WriteSlot)
    assert stream.writer.stats()["blocked_ns"] > 0


def test_closing_wakes_who_waits(stream: TestStream) -> None:
    lossless, latest = stream.attach(_core.POLICY_LOSSLESS), stream.attach()
    for _ in range(stream.nslots):
        stream.publish()
    next_slot(latest).close()
    waiting_writer = in_thread(stream.writer.acquire)
    waiting_reader = in_thread(latest.reader.next)
    wait_until(lambda: asleep(latest) and stream.control.stats()["would_block"] > 0)
    latest.reader.close()
    stream.writer.close()
    for thread, outcome in (waiting_writer, waiting_reader):
        thread.join()
        assert isinstance(outcome[0], ValueError)
    assert next_slot(lossless).seq == 1


def test_a_signal_reaches_python_while_a_reader_waits(stream: TestStream) -> None:
    reader = stream.attach()
    caught = threading.Event()

    class Interrupted(Exception):
        pass

    def interrupt(signum: int, frame: object) -> None:
        caught.set()
        raise Interrupted

    def send() -> None:
        wait_until(lambda: asleep(reader))
        while not caught.is_set():  # the reader may not be in poll yet
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            caught.wait(0.01)

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=send)
    try:
        thread.start()
        with pytest.raises(Interrupted):
            reader.reader.next(PATIENCE_S)
    finally:
        caught.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert not asleep(reader)


def test_an_event_loop_waits_on_fileno(stream: TestStream) -> None:
    reader = stream.attach()
    poll = select.poll()
    poll.register(reader.reader.fileno(), select.POLLIN)
    assert reader.reader.arm() is False
    assert poll.poll(0) == []
    stream.publish()
    stream.publish()
    assert poll.poll(0) != []
    assert stream.writer.stats()["wakes"] == 1
    reader.reader.disarm()
    assert poll.poll(0) == []
    assert reader.reader.arm() is True
    assert next_slot(reader).seq == 2
    assert reader.reader.next(0) is None


def test_a_writer_in_an_event_loop_is_told_of_room(stream: TestStream) -> None:
    reader = stream.attach(_core.POLICY_LOSSLESS)
    poll = select.poll()
    poll.register(stream.writer.fileno(), select.POLLIN)
    assert stream.writer.arm() is True
    for _ in range(stream.nslots):
        stream.publish()
    assert stream.writer.arm() is False
    assert poll.poll(0) == []
    next_slot(reader).close()
    assert poll.poll(0) != []
    stream.writer.disarm()
    assert poll.poll(0) == []
    assert stream.publish() == stream.nslots + 1


def test_threads_share_a_stream(stream: TestStream) -> None:
    frames = 2000
    reader = stream.attach(_core.POLICY_LOSSLESS, max_pins=3)
    seen: list[int] = []

    def read() -> None:
        while True:
            try:
                got = next_slot(reader, PATIENCE_S)
            except _core.StreamEnded:
                return
            seen.append(got.seq)
            assert bytes(memoryview(got)) == b"%d" % got.seq
            got.close()

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for seq in range(1, frames + 1):
        slot = stream.writer.acquire(PATIENCE_S)
        assert slot is not None
        text = b"%d" % seq
        with memoryview(slot) as view:
            view[: len(text)] = text
        slot.nbytes = len(text)
        assert slot.publish() == seq
        del slot
    stream.writer.end(_core.END_CLOSED)
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, frames + 1))
