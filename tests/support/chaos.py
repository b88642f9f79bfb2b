"""The chaos client: one attack per function, each what a hostile or broken peer could do.

    python -m tests.support.chaos SOCKET ATTACK TARGET SECONDS

says `ready`, waits for a line, attacks for that long, and prints what happened to it as JSON.
Here are attacks by messages; chaos_memory.py has those on shared memory. TARGET is a stream of
somebody else.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress

from tests.support import chaos_memory
from tests.support.attacker import Attacker, HostileSession, packed

SPEC = {"slots": 8, "slot_nbytes": 4096}
_STATUS = packed(type="status", id=1)
_LEASES = packed(type="list", what="leases", id=1)
_UNASKED = packed(type="reply", id=9)
_READ_NBYTES = 1 << 18


def _pump(
    attacker: Attacker, sessions: list[HostileSession], data: bytes, messages: int, *, read: bool
) -> None:
    """Sends so many messages again and again on all sessions, as fast as they are taken."""
    left = {session.sock: memoryview(data) for session in sessions}
    for sock in left:
        sock.setblocking(False)
    while left and attacker.go_on():
        readable, writable, _ = select.select(left if read else [], left, [], 0.1)
        for sock in readable:
            if not sock.recv(_READ_NBYTES):
                attacker.saw("session ended")
                left.pop(sock)
        for sock in writable:
            try:
                if sock in left:
                    rest = left[sock][sock.send(left[sock]) :]
                    left[sock] = rest or memoryview(data)
                    attacker.outcomes["messages taken"] += 0 if rest else messages
            except BlockingIOError:
                continue
            except OSError:
                attacker.saw("session ended")
                left.pop(sock)
        if not writable:
            attacker.saw("has to wait")


def send_part_of_a_message_and_wait(attacker: Attacker) -> None:
    """Half a length, half a body: sixteen sessions that never finish what they say."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(attacker.session()) for _ in range(16)]
        for number, session in enumerate(sessions):
            session.sock.sendall(_STATUS[: 2 + number % 8])
        attacker.rest()
        attacker.saw("nobody waits for it")


def send_a_byte_at_a_time(attacker: Attacker) -> None:
    """A message in as many pieces as it has bytes."""
    with attacker.session() as session:
        while attacker.go_on():
            for index in range(len(_STATUS)):
                session.sock.sendall(_STATUS[index : index + 1])
            attacker.saw(session.receive())


def flood_with_requests(attacker: Attacker) -> None:
    """Requests on four sessions as fast as the sockets take them; reads the answers."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(attacker.session()) for _ in range(4)]
        _pump(attacker, sessions, _STATUS * 500, 500, read=True)


def flood_with_answers(attacker: Attacker) -> None:
    """Answers that nobody asked for, which get no answer themselves."""
    with attacker.session() as session:
        _pump(attacker, [session], _UNASKED * 1000, 1000, read=True)


def flood_with_long_messages(attacker: Attacker) -> None:
    """Messages as long as they may be, of very many small values."""
    long = packed(type="status", id=1, junk=[{}] * 65_000)
    with attacker.session() as session:
        _pump(attacker, [session], long, 1, read=True)


def flood_with_dear_requests(attacker: Attacker) -> None:
    """What costs the daemon most: the model repository read again, all leases."""
    dear = packed(type="load_models", id=1) + _LEASES
    with ExitStack() as stack:
        sessions = [stack.enter_context(attacker.session()) for _ in range(2)]
        _pump(attacker, sessions, dear * 100, 200, read=True)


def ask_10000_times_without_reading(attacker: Attacker) -> None:
    """Ten thousand requests, and no answer is ever read."""
    while attacker.go_on():
        with attacker.session() as session:
            session.sock.settimeout(5.0)
            try:
                for _ in range(100):
                    session.sock.sendall(_LEASES * 100)
            except TimeoutError:
                attacker.saw("has to wait")
            except OSError:
                attacker.saw("session ended")
            else:
                attacker.saw("all were taken")
            attacker.wait(0.2)


def never_read(attacker: Attacker) -> None:
    """Asks for as much as it can on eight sessions and never reads; asks again when thrown out."""
    while attacker.go_on():
        with ExitStack() as stack:
            sessions = [stack.enter_context(attacker.session()) for _ in range(8)]
            _pump(attacker, sessions, _LEASES * 200, 200, read=False)


def close_in_the_middle_of_a_reply(attacker: Attacker) -> None:
    """Asks for long answers, for streams and readers, and is gone before they come."""
    stream = packed(type="create_stream", id=2, name=f"gone-{os.getpid()}", spec=SPEC)
    reader = packed(type="attach_reader", id=3, stream=attacker.target)
    while attacker.go_on():
        with attacker.session() as session:
            session.sock.sendall(_LEASES * 20 + stream + reader)
            session.sock.recv(3)
            attacker.saw("let go")


def pass_250_descriptors(attacker: Attacker) -> None:
    """One message with as many descriptors as the kernel lets through."""
    with open(os.devnull) as null:
        while attacker.go_on():
            with attacker.session() as session:
                with suppress(OSError):
                    socket.send_fds(session.sock, [_STATUS], [null.fileno()] * 250)
                attacker.drain(session)


def pass_wrong_descriptors(attacker: Attacker) -> None:
    """A pipe, a directory, /dev/zero, an unsealed memfd, a socket: announced and not."""
    while attacker.go_on():
        with ExitStack() as stack:
            wrong = [
                *os.pipe(),
                os.open("/", os.O_RDONLY | os.O_DIRECTORY),
                os.open("/dev/zero", os.O_RDWR),
                os.memfd_create("unsealed"),
            ]
            for fd in wrong:
                stack.callback(os.close, fd)
            for fd in wrong:
                for memory in ("foreign", "memfd", "posix"):
                    spec = {**SPEC, "memory": memory}
                    create = {"type": "create_stream", "name": f"w-{os.getpid()}", "id": 1}
                    with attacker.session() as session:
                        message = packed(**create, spec=spec, fds=1)
                        socket.send_fds(session.sock, [message], [fd])
                        attacker.saw(session.receive())
            with attacker.session() as session:
                socket.send_fds(session.sock, [_STATUS], [wrong[0]])  # not announced
                attacker.drain(session)
            with attacker.session() as session:  # its own socket: would it ever come to its end?
                socket.send_fds(
                    session.sock, [packed(type="status", id=1, fds=1)], [session.sock.fileno()]
                )
                attacker.saw(session.receive())


def pass_a_descriptor_with_each_byte(attacker: Attacker) -> None:
    """Descriptors dribbled into a message that is never finished."""
    with open(os.devnull) as null:
        while attacker.go_on():
            with attacker.session() as session:
                with suppress(OSError):
                    for index in range(len(_STATUS) - 1):
                        piece = _STATUS[index : index + 1]
                        socket.send_fds(session.sock, [piece], [null.fileno()] * 8)
                attacker.drain(session)


def announce_huge_lengths(attacker: Attacker) -> None:
    """Lengths of 0, of one too many and of 4 GiB."""
    while attacker.go_on():
        for length in (0, 65537, 2**31, 2**32 - 1):
            with attacker.session() as session:
                session.sock.sendall(length.to_bytes(4, "little") + b"x" * 100)
                attacker.drain(session)


def send_garbage(attacker: Attacker) -> None:
    """Random bytes, before and after hello."""
    while attacker.go_on():
        for hello in (False, True):
            with attacker.session(hello=hello) as session:
                with suppress(OSError):
                    session.send_body(os.urandom(300))
                attacker.drain(session)


def claim_the_stream_of_another(attacker: Attacker) -> None:
    """Makes a stream of its name; closes, seals and resizes it; detaches its readers."""
    with attacker.session() as session:
        while attacker.go_on():
            attacker.saw(session.ask(type="create_stream", name=attacker.target, spec=SPEC))
            leases = session.ask(type="list", what="leases")["result"]["items"]
            for lease in leases:
                number = lease["id"]
                if lease["kind"] == "reader":
                    attacker.saw(session.ask(type="detach_reader", reader=number))
                    attacker.saw(session.ask(type="run_once", reader=number))
                if lease["kind"] == "stream":
                    for kind in ("close_stream", "seal_stream"):
                        attacker.saw(session.ask(type=kind, stream=number))
                    resize = {"type": "resize_stream", "stream": number, "first_seq": 1}
                    attacker.saw(session.ask(**resize, spec=SPEC))


def replay_old_generations(attacker: Attacker) -> None:
    """Resizes its stream, then does to the generations before what was done already."""
    while attacker.go_on():
        with attacker.session() as session:
            name = f"old-{os.getpid()}"
            grant, _ = session.grant(type="create_stream", name=name, spec=SPEC)
            stream = grant.get("stream", 0)
            session.ask(type="seal_stream", stream=stream)
            resize = {"type": "resize_stream", "stream": stream, "first_seq": 1}
            session.ask(**resize, spec=SPEC)
            for generation in (2, 1, 1, 2, 0, 3, 2**63, 1):
                for kind in ("seal_stream", "close_stream"):
                    attacker.saw(session.ask(type=kind, stream=stream, generation=generation))
            attacker.saw(session.ask(**resize, spec=SPEC))


def attach_and_detach(attacker: Attacker) -> None:
    """A reader comes and goes without end."""
    with attacker.session() as session:
        while attacker.go_on():
            grant, fds = session.grant(type="attach_reader", stream=attacker.target)
            attacker.saw("attached" if grant else "refused")
            for fd in fds:
                os.close(fd)
                session.fds.remove(fd)
            session.take_fds()
            session.ask(type="detach_reader", reader=grant.get("reader", 0))


def create_and_close(attacker: Attacker) -> None:
    """A stream is made and closed without end."""
    with attacker.session() as session:
        while attacker.go_on():
            name = f"churn-{os.getpid()}"
            grant, fds = session.grant(type="create_stream", name=name, spec=SPEC)
            attacker.saw("made" if grant else "refused")
            for fd in fds:
                os.close(fd)
                session.fds.remove(fd)
            session.take_fds()
            session.ask(type="close_stream", stream=grant.get("stream", 0))


def open_thousands_of_connections(attacker: Attacker) -> None:
    """As many as come through, greeted or not, and holds them."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    socks: list[socket.socket] = []
    try:
        for number in range(min(3000, most - 64)):
            sock = socket.socket(socket.AF_UNIX)
            socks.append(sock)
            sock.settimeout(5.0)
            sock.connect(attacker.socket)
            if number % 2:
                sock.sendall(packed(type="hello", id=1, versions=[1]))
            if not attacker.go_on():
                break
        for sock in socks:
            sock.setblocking(False)
            try:
                data = sock.recv(400)
                refused = b"limit" in data or not data
                attacker.saw("error limit" if refused else "connected")
            except BlockingIOError:
                attacker.saw("connected")
            except OSError:
                attacker.saw("session ended")
        attacker.rest()
    finally:
        for sock in socks:
            sock.close()


def connect_and_hang_up(attacker: Attacker) -> None:
    """Connections that are gone at once."""
    while attacker.go_on():
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                sock.settimeout(5.0)
                sock.connect(attacker.socket)
                attacker.saw("connected")
            except OSError:
                attacker.saw("refused")


def take_all_memory(attacker: Attacker) -> None:
    """Streams of 64 MiB until it is refused; then they are closed again."""
    while attacker.go_on():
        with attacker.session() as session:
            for number in range(4):
                spec = {"slots": 8, "slot_nbytes": 1 << 33 if number == 3 else 1 << 20}
                name = f"hog-{os.getpid()}-{number}"
                attacker.saw(session.ask(type="create_stream", name=name, spec=spec))


def never_admit_a_reader(attacker: Attacker) -> None:
    """Writes a stream and answers no `reader_join`; attaches to it itself again and again."""
    with attacker.session() as writer:
        name = f"deaf-{os.getpid()}"
        grant, _ = writer.grant(type="create_stream", name=name, spec=SPEC)
        writer.ask(type="seal_stream", stream=grant.get("stream", 0))
        with attacker.session() as reader:
            for number in range(1, 201):
                reader.send(type="attach_reader", stream=name, id=number)
            reader.sock.settimeout(0.5)
            while attacker.go_on():
                try:
                    answer = reader.receive()
                except TimeoutError:
                    attacker.wait(0.5)
                    continue
                attacker.saw(answer)
                if not answer:
                    break


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    attack.__name__: attack
    for attack in (
        send_part_of_a_message_and_wait, send_a_byte_at_a_time, flood_with_requests,
        flood_with_answers, flood_with_long_messages, flood_with_dear_requests,
        ask_10000_times_without_reading, never_read, close_in_the_middle_of_a_reply,
        pass_250_descriptors, pass_wrong_descriptors, pass_a_descriptor_with_each_byte,
        announce_huge_lengths, send_garbage, claim_the_stream_of_another, replay_old_generations,
        attach_and_detach, create_and_close, open_thousands_of_connections, connect_and_hang_up,
        take_all_memory, never_admit_a_reader, *chaos_memory.ATTACKS,
    )
}  # fmt: skip


def main() -> None:
    """The process."""
    path, name, target, seconds = sys.argv[1:]
    attack = ATTACKS[name]
    print("ready", flush=True)
    sys.stdin.readline()
    attacker = Attacker(path, target, float(seconds))
    try:
        attack(attacker)
    except OSError as error:
        attacker.saw(type(error).__name__)
    print(json.dumps(attacker.outcomes), flush=True)


if __name__ == "__main__":
    main()
