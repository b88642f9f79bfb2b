"""Python's labelled steps: which function's beginning or end is one.

A label's first word is the role whose processes come to it.
"""

from __future__ import annotations

from typing import NamedTuple


class Label(NamedTuple):
    """A step of the product's Python.

    Attributes:
        name: As reports have it.
        module: Where the function is.
        function: Its dotted path there.
        before: Whether the step is where it begins; else where it has returned.
    """

    name: str
    module: str
    function: str
    before: bool = False


def _steps(module: str, *rows: tuple[str, str]) -> list[Label]:
    """A row: a label and `function`, or `>function` for the step before it."""
    return [
        Label(name, f"mcpd.{module}", function.lstrip(">"), function.startswith(">"))
        for name, function in rows
    ]


LABELS = [
    # A client, whatever it does.
    *_steps("shm.paths", ("client.connected", "open_socket")),
    *_steps(
        "shm.connection",
        ("client.request.sent", "Connection.submit"),
        ("client.request.replied", "Connection.request"),
        ("client.message.received", ">Connection._handle"),
        ("client.message.handled", "Connection._handle"),
        ("client.closing", ">Connection.close"),
        ("client.closed", "Connection.close"),
    ),
    *_steps(
        "shm.stream",
        ("client.stream.granted", ">map_writer"),
        ("client.stream.mapped", "map_writer"),
        ("client.reader.granted", ">map_reader"),
        ("client.reader.mapped", "map_reader"),
    ),
    *_steps(
        "shm.writer_stream",
        ("client.resize.frozen", ">WriterStream._go_on"),
        ("client.resize.granted", ">WriterStream._map_next"),
        ("client.resize.brought_over", "WriterStream._map_next"),
        ("client.resize.moved", "WriterStream._go_on"),
        ("client.stream.detached", "WriterStream._detach"),
    ),
    *_steps("shm.streaming", ("client.stream.sealed", "StreamClient.create_stream")),
    *_steps(
        "shm.reader_stream",
        ("client.reader.told_of_move", "ReaderStream.move"),
    ),
    *_steps(
        "shm.reader_moves",
        ("client.reader.moving", ">ReaderMoves._advance"),
        ("client.reader.moved", "ReaderMoves._advance"),
    ),
    *_steps(
        "shm.writer_generation",
        ("client.group.admitted", "WriterGeneration.join_group"),
        ("client.reader.admitted", "WriterGeneration.join_reader"),
        ("client.reader.left", "WriterGeneration.leave_reader"),
    ),
    *_steps("shm.results", ("client.results.opened", "open_results")),
    *_steps(
        "shm.requests",
        ("client.infer.submitted", "Requests.try_submit"),
        ("client.infer.collected", "Requests.collect"),
    ),
    # The daemon: sessions.
    *_steps(
        "daemon.server",
        ("daemon.session.accepting", ">Server._admit"),
        ("daemon.session.accepted", "Server._admit"),
        ("daemon.session.greeted", "Server._hello"),
        ("daemon.session.end_of_file", ">Server.ended"),
        ("daemon.session.revoked", "Server.ended"),
        ("daemon.session.process_gone", ">Server._process_gone"),
        ("daemon.session.freed", "Server._process_gone"),
    ),
    *_steps(
        "daemon.session",
        ("daemon.request.received", ">Session._answer"),
        ("daemon.request.replying", ">Session._reply"),
        ("daemon.request.replied", "Session._reply"),
        ("daemon.request.refused", "Session._reply_error"),
    ),
    # The daemon: streams.
    *_steps(
        "daemon.streams",
        ("daemon.create.asked", ">Streams.create"),
        ("daemon.create.reserving", ">Streams._make_objects"),
        ("daemon.create.reserved", "Streams._make_objects"),
        ("daemon.create.made", "Streams._make"),
        ("daemon.create.listed", "Streams.create"),
        ("daemon.seal.asked", ">Streams.seal"),
        ("daemon.seal.sealed", "Streams.seal"),
        ("daemon.resize.asked", ">Streams.resize"),
        ("daemon.resize.made", "Streams.resize"),
        ("daemon.close.asked", ">Streams.close"),
        ("daemon.close.closed", "Streams.close"),
    ),
    *_steps(
        "daemon.registry",
        ("daemon.end.ending", ">Registry.end_stream"),
        ("daemon.end.ended", "Registry.end_stream"),
        ("daemon.free.freeing", ">Registry._free_stream"),
        ("daemon.free.freed", "Registry._free_stream"),
        ("daemon.reader.released", "Registry.release_reader"),
        ("daemon.reader.removing", ">Registry.remove_reader"),
        ("daemon.reader.removed", "Registry.remove_reader"),
        ("daemon.group.left", "Registry._leave_group"),
    ),
    # The daemon: readers, and bringing them over.
    *_steps(
        "daemon.readers",
        ("daemon.attach.asked", ">Readers.attach"),
        ("daemon.attach.made", "Readers._make"),
        ("daemon.attach.admitted", "Readers._ask_writer"),
        ("daemon.attach.attached", "Readers.attach"),
        ("daemon.detach.asked", ">Readers.detach"),
    ),
    *_steps(
        "daemon.groups",
        ("daemon.group.made", "Groups._make"),
        ("daemon.group.introduced", "Groups._introduce"),
    ),
    *_steps(
        "daemon.handover",
        ("daemon.handover.begun", ">Handover.resize"),
        ("daemon.handover.carried", "Handover._carry"),
        ("daemon.handover.told", "Handover._tell"),
        ("daemon.handover.done", "Handover.resize"),
        ("daemon.handover.succeeded", "Handover.succeed"),
    ),
    # The daemon: models.
    *_steps(
        "daemon.bindings",
        ("daemon.results.asked", ">Bindings.open"),
        ("daemon.results.bound", "Bindings._binding"),
        ("daemon.results.served", "Bindings._serve"),
        ("daemon.results.attached", "Bindings._attach"),
        ("daemon.results.unused", "Bindings._readers_gone"),
    ),
    *_steps(
        "daemon.spawning",
        ("daemon.worker.spawning", ">spawn_worker"),
        ("daemon.worker.spawned", "spawn_worker"),
    ),
    *_steps("daemon.supervisor", ("daemon.worker.ready", "Supervisor.worker_state")),
    *_steps(
        "daemon.reaper",
        ("daemon.name.owning", ">Reaper.own"),
        ("daemon.name.owned", "Reaper.own"),
        ("daemon.name.disowned", "Reaper.disown"),
    ),
    # A worker.
    *_steps(
        "daemon.worker.binding",
        ("worker.serve.asked", ">open_binding"),
        ("worker.serve.attached", "_attach"),
        ("worker.serve.created", "_create"),
        ("worker.serve.opened", "open_binding"),
        ("worker.step.begun", ">Binding.step"),
        ("worker.step.slot_taken", "Binding._take_slot"),
        ("worker.step.frame_taken", "Binding._take_frame"),
        ("worker.step.making", ">Binding._make_result"),
        ("worker.step.filled", "_fill"),
        ("worker.step.made", "Binding._make_result"),
        ("worker.unserve.closing", ">Binding.close"),
        ("worker.unserve.closed", "Binding.close"),
    ),
    *_steps(
        "daemon.worker.pipeline",
        ("worker.load.loaded", "ModelRunner.load"),
        ("worker.load.warmed_up", "ModelRunner.warm_up"),
        ("worker.frame.prepared", "ModelRunner._tensors"),
        ("worker.frame.done", "ModelRunner.run"),
    ),
    *_steps(
        "daemon.engines.onnx",
        ("worker.frame.inferring", ">OnnxEngine.run"),
        ("worker.frame.inferred", "OnnxEngine.run"),
    ),
    # A source.
    *_steps("shm.video", ("source.opened", "open_video")),
    *_steps(
        "daemon.source.player",
        ("source.prepared", "Player._prepare"),
        ("source.created", "Player._create_stream"),
        ("source.frame.decoded", ">Player._publish"),
        ("source.frame.published", "Player._publish"),
        ("source.finishing", ">Player._finish"),
        ("source.finished", "Player._finish"),
    ),
    *_steps(
        "shm.picture",
        ("source.frame.writing", ">Picture.write"),
        ("source.frame.written", "Picture.write"),
    ),
]
