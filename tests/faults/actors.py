"""What the forked processes do: a whole life of a frame or a lease each, to be cut off anywhere."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.faults.zygote import MARKS_NBYTES, Channel, Task, marks
from tests.support import step_loading

PATIENCE_S = 20.0
FRAMES = 12
GEOMETRY: dict[str, Any] = {"width": 64, "height": 16, "format": "gray8", "slots": 24, "holds": 3}
_libraries: list[Any] = []


def prepare(kind: str) -> None:
    """Imports what actors of this kind need, before any of them is forked."""
    if kind == "daemon":
        import mcpd.daemon.__main__

        return
    import numpy  # noqa: F401

    import mcpd.daemon.source.__main__
    import mcpd.shm.modelling
    import mcpd.shm.picture
    import mcpd.shm.streaming
    import mcpd.shm.video
    from tests.faults import bystanders  # noqa: F401
    from tests.support.libmcpd import LibMcpd

    mcpd.shm.video._import_av()
    library = os.environ.get("MCPD_STEPS_LIBRARY")
    if library:
        _libraries.append(LibMcpd(library))  # type: ignore[arg-type]


def run(channel: Channel) -> None:
    """A forked child: does its task, says how it went, and exits."""
    task = channel.receive(PATIENCE_S)
    if task is None:
        os._exit(3)
    page = task.get("page")
    if page:
        step_loading.use_page(page)
        for library in _libraries:
            library._library.mcpd_test_steps_open(page.encode())
    status = 0
    try:
        if task["does"] == "daemon":
            daemon(task)
        if task["does"] == "source":
            source(channel, task)
        status = _act(channel, task)
    except BaseException:
        channel.send(event="error", text=traceback.format_exc()[-6000:])
        status = 1
    os._exit(status)


def _act(channel: Channel, task: Task) -> int:
    from mcpd.shm import McpdError
    from tests.faults.bystanders import bystand, companion
    from tests.faults.ledger import Ledger

    ledger = Ledger()
    ledger.install()
    acts: dict[str, Callable[[Channel, Task], None]] = {
        "write": write,
        "read": read,
        "both": both,
        "c": c_client,
        "watch": watch,
        "load": load,
        "companion": companion,
        "bystand": bystand,
    }
    try:
        acts[task["does"]](channel, task)
    except McpdError as error:
        # Others die as well: an error is an answer. What is more than that, the test decides.
        channel.send(event="refused", code=error.code, text=f"{error} {error.hint}"[:2000])
    fault = ledger.fault()
    if fault:
        channel.send(event="error", text=fault)
    channel.send(event="done", asked=ledger.asked, answered=ledger.answered)
    return 0


def daemon(task: Task) -> None:
    """The daemon itself."""
    from mcpd.daemon.__main__ import main

    os.environ.update(task["env"])
    log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    sys.argv = ["mcpd.daemon"]
    os._exit(main(task["arguments"]))


def source(channel: Channel, task: Task) -> None:
    """What `mcpd push` becomes."""
    from mcpd.daemon.source.__main__ import main
    from mcpd.daemon.source.player import Player

    wait = Player._wait_for_readers

    def say_and_wait(player: Player, stream: Any) -> None:
        channel.send(event="sealed", name=task["name"])
        wait(player, stream)

    Player._wait_for_readers = say_and_wait  # type: ignore[method-assign, assignment]
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.dup2(null, 1)
    main([task["clip"], "--stream", task["name"], "--socket", task["socket"], "--progress", "none",
          "--max-speed", "--wait-readers", "1"])  # fmt: skip
    channel.send(event="done", asked=0, answered=0)
    os._exit(0)


# ---- streams ------------------------------------------------------------------------------------


def publish(stream: Any, frames: int, pause_s: float = 0.0) -> None:
    """So many frames, each filled with its own number; some given up, some looked at afterwards."""
    for number in range(frames):
        with stream.acquire(PATIENCE_S) as slot:
            plane = slot.planes[0]
            level = number % 251
            plane[:] = level
            slot.pts_ns = level
            if number % 5 == 4:
                slot.abandon()
        if number % 3:
            assert int(plane[0, 0]) == level, "the writer's own view has changed"
        del plane
        if pause_s:
            time.sleep(pause_s)


def write(channel: Channel, task: Task) -> None:
    """A stream from its making to its end, resized in the middle; a companion reads it."""
    from mcpd.shm import connect

    with connect(task["socket"], name="soak writer") as client:
        stream = client.create_stream(task["name"], memory=task.get("memory", "memfd"), **GEOMETRY)
        channel.send(event="sealed", name=task["name"])
        deadline = time.monotonic() + 0.2
        while not stream.readers and time.monotonic() < deadline:
            time.sleep(0.001)
        for width in (32, 0):
            publish(stream, FRAMES, 0.0005)
            if not stream.arm():
                stream.disarm()
            publish(stream, 3 * FRAMES)
            if width:
                stream.resize(width=width)
        publish(stream, FRAMES // 2, 0.002)
        stream.close()


def read(channel: Channel, task: Task) -> None:
    """A reader of the stream `feed`, from its coming to its going."""
    from mcpd.shm import connect

    reading = task["reading"]
    with connect(task["socket"], name="soak reader") as client:
        stream = client.open_stream("feed", **reading)
        held = []
        for _ in range(FRAMES if reading.get("group") != "team" else 3):
            held.append(stream.next(PATIENCE_S))
            if len(held) > 1:
                done(held.pop(0), reading.get("group", ""))
        if reading.get("group") == "team":
            done(held.pop(), "team")
            stream.close()
            return
        for frame in held:
            frame.close()
        held.clear()
        stream.close()


def done(frame: Any, group: str) -> None:
    """Has done with a frame: says so first, if all frames of the group are counted."""
    plane = frame.planes[0]
    assert int(plane.min()) == int(plane.max()) == frame.pts_ns, f"frame {frame.seq} is torn"
    del plane
    if group == "team":
        marks[0][frame.seq % MARKS_NBYTES] = 1
    frame.close()


def both(channel: Channel, task: Task) -> None:
    """Everything that can be done with a stream, at both its ends, in one process."""
    from mcpd.shm import NotFound, StreamClosed, connect

    socket, name = task["socket"], task["name"]
    with connect(socket, name="soak both") as client, connect(socket, name="soak both 2") as other:
        stream = client.create_stream(name, memory="posix", history=4, **GEOMETRY)
        lossless = other.open_stream(name, policy="lossless", follow=True)
        members = [other.open_stream(name, policy="fifo", depth=4, group="g") for _ in range(2)]
        publish(stream, 5)
        members[0].next(PATIENCE_S)
        kept = [members[0].next(PATIENCE_S)]
        members[0].close()  # what it has not done with goes to the other
        del kept
        for _ in range(2):
            with suppress_none():
                members[1].next(0.02).close()
        drain(lossless)
        publish(stream, 3)
        pinned = lossless.next(PATIENCE_S)
        for _ in range(2):  # the writer would have its slot back, and finds the pin
            publish(stream, 3)
            drain(lossless)
        pinned.close()
        stream.resize(width=32)
        publish(stream, 5)
        drain(lossless)
        with suppress(NotFound):
            other.open_stream("nobody")
        third = connect(socket, name="soak both 3")
        third.open_stream(name, policy="latest").next(PATIENCE_S)
        third.connection.close()  # its process lives on, and may still look
        members[1].close()
        publish(stream, 3)
        drain(lossless)
        stream.close()
        with suppress_none(), suppress(StreamClosed):
            lossless.next(0.01).close()
        with client.create_stream(name, **GEOMETRY) as again:
            publish(again, 3)
            drain(lossless)
            lossless.close()


def drain(reader: Any) -> None:
    """Takes what is there."""
    with suppress_none():
        while True:
            reader.next(0.004).close()


def suppress_none() -> suppress:
    """For a reader that finds nothing."""
    from mcpd.shm import TimedOut, WouldBlock

    return suppress(TimedOut, WouldBlock)


def c_client(channel: Channel, task: Task) -> None:
    """The same through libmcpd."""
    from ctypes import c_void_p

    from tests.support.libmcpd import image_options

    library = _libraries[0]
    client = library.connect(task["socket"], name="soak c")
    options = image_options("gray8", 64, 16, slots=12)
    stream = library.create_stream(client, task["name"], options)
    reader = library.attach(client, task["name"], "lossless")
    for number in range(FRAMES):
        library.publish(stream, bytes([number]) * 1024, number)
        pin, meta = library.next(reader)
        assert meta.pts_ns == number, f"frame {meta.seq} is not {number}"
        library.unpin(reader, pin)
    members = [library.attach(client, task["name"], "lossless", group=b"g") for _ in range(2)]
    for number in range(3):
        library.publish(stream, bytes([number]) * 1024, number)
        library.unpin(reader, library.next(reader)[0])
        pin, _ = library.next(members[0])
        if number == 1:
            library["reader_give_back"](c_void_p(library["stream_reader"](members[0])), pin)
            library.unpin(members[1], library.next(members[1])[0])
        elif number == 0:
            library.unpin(members[0], pin)
    for end in (*members, reader):
        library["stream_close"](end)
    library["stream_close"](stream)
    library["close"](client)


def watch(channel: Channel, task: Task) -> None:
    """A model's results on a stream, and requests to it."""
    import numpy as np

    from mcpd.shm import connect

    with connect(task["socket"], name="soak watcher") as client:
        with client.results(task["stream"], model="trivial", timeout_s=PATIENCE_S) as results:
            for _ in range(4):
                results.next(PATIENCE_S)
        picture = np.full((16, 64, 3), 7, np.uint8)
        for _ in range(2):
            client.infer("trivial", picture, format="rgb24", timeout_s=PATIENCE_S)


# ---- under a daemon that dies --------------------------------------------------------------------


def load(channel: Channel, task: Task) -> None:
    """All of the above, again and again, until the daemon is gone; then says what it saw."""
    from mcpd.shm import DaemonUnavailable, McpdError, connect
    from tests.faults.bystanders import keep_reading

    socket, name = task["socket"], task["name"]
    client = connect(socket, name="soak load")
    held = {**GEOMETRY, "format": "rgb24", "memory": "posix"}
    stream = client.create_stream(f"{name}-held", **held)
    reader = client.open_stream(f"{name}-held", policy="lossless")
    reading = threading.Thread(target=keep_reading, args=(reader,))
    reading.start()
    channel.send(event="began")
    over = False
    while not over:
        try:
            both(channel, {"socket": socket, "name": f"{name}-both"})
            if task.get("models"):
                feeding = threading.Thread(target=feed_quietly, args=(stream, 200))
                feeding.start()
                watch(channel, {"socket": socket, "stream": f"{name}-held"})
                feeding.join()
            channel.send(event="round")
        except McpdError:
            time.sleep(0.001)
        over = client.connection.lost
    try:
        client.status()
        raise AssertionError("the daemon is gone, and answers")
    except DaemonUnavailable:
        pass
    reading.join(PATIENCE_S)
    assert not reading.is_alive(), "a reader waits for a daemon that is gone"
    client.close()
    channel.send(event="noticed", at_ns=time.monotonic_ns())


def feed_quietly(stream: Any, frames: int) -> None:
    """Frames for a model, as long as there is somebody who takes them."""
    from mcpd.shm import McpdError

    with suppress(McpdError):
        for _ in range(frames):
            with stream.acquire(1.0) as slot:
                slot.planes[0][:] = 7
            time.sleep(0.002)
