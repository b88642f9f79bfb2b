"""assert_no_leaks: each thing planted is found, named and placed; clean work passes."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import posix_ipc
import pytest

from mcpd.shm import connect
from mcpd.shm.leaks import LeakError, Thing, assert_no_leaks
from tests.support.daemon import RunningDaemon

FILE = os.path.basename(__file__)
OTHERS = r"name /dev/shm/(?!psm_)"
"""What other tests, which may run meanwhile, name; none of them makes what is planted here."""


@contextmanager
def left_behind(**options: Any) -> Iterator[list[Thing]]:
    """What assert_no_leaks finds in the body."""
    found: list[Thing] = []
    options = {"grace_s": 0.0, "ignore": [OTHERS], **options}
    with pytest.raises(LeakError) as caught, assert_no_leaks(**options):
        yield found
    found.extend(caught.value.leftovers)
    for thing in found:
        assert str(thing) in str(caught.value)


def test_an_open_file_is_found_with_its_line() -> None:
    with left_behind() as found:
        file = open("/etc/hostname")  # noqa: SIM115
    file.close()
    assert [thing.kind for thing in found] == ["descriptor"]
    assert "/etc/hostname" in found[0].name
    assert FILE in found[0].site
    assert found[0].owner == f"process {os.getpid()}"


def test_a_socket_is_found_with_its_line() -> None:
    with left_behind() as found:
        left = socket.socket()
    left.close()
    assert [thing.kind for thing in found] == ["descriptor"]
    assert FILE in found[0].site


def test_a_memfd_and_its_mapping_are_found() -> None:
    with left_behind() as found:
        fd = os.memfd_create("planted")
        os.ftruncate(fd, 4096)
        mapping = mmap.mmap(fd, 4096)
    mapping.close()
    os.close(fd)
    # mmap keeps a descriptor of its own.
    assert sorted(thing.kind for thing in found) == ["descriptor", "descriptor", "mapping"]
    assert all("planted" in thing.name for thing in found)
    assert all(FILE in thing.site for thing in found)


def test_a_thread_is_found_with_its_name_and_line() -> None:
    stop = threading.Event()
    with left_behind() as found:
        thread = threading.Thread(target=stop.wait, name="planted")
        thread.start()
    stop.set()
    thread.join()
    assert [thing.kind for thing in found] == ["thread"]
    assert found[0].name.startswith("planted (")
    assert FILE in found[0].site


def test_a_child_and_one_that_was_not_waited_for_are_found() -> None:
    with left_behind(kinds=["process"]) as found:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        gone = os.fork()
        if not gone:
            os._exit(0)
        os.waitid(os.P_PID, gone, os.WEXITED | os.WNOWAIT)
    child.communicate()
    os.waitpid(gone, 0)
    by_name = {thing.name: thing for thing in found}
    assert f"{gone}: ended, and not waited for" in by_name
    assert any(name.startswith(f"{child.pid}: ") and FILE in by_name[name].site for name in by_name)


def test_a_named_segment_that_was_closed_and_not_unlinked_is_found() -> None:
    with left_behind(kinds=["name"]) as found:
        memory = SharedMemory(create=True, size=4096)
        memory.close()
    memory.unlink()
    assert [thing.name for thing in found] == [f"/dev/shm/{memory.name}"]
    assert FILE in found[0].site


def test_a_semaphore_is_found() -> None:
    name = f"/mcpd-test-{os.getpid()}"
    with left_behind() as found:
        semaphore = posix_ipc.Semaphore(name, posix_ipc.O_CREX)
    semaphore.close()
    posix_ipc.unlink_semaphore(name)
    assert {thing.kind for thing in found} == {"semaphore"}


def test_a_stream_that_is_not_closed_is_found_as_a_lease(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket, trace=True) as client:
        with left_behind(kinds=["lease"]) as found:
            stream = client.create_stream("left", width=64, height=48, format="rgb24")
        with assert_no_leaks(), client.open_stream("left"):
            pass
        stream.close()
    assert {thing.kind for thing in found} == {"lease"}
    assert any("stream left" in thing.name and FILE in thing.site for thing in found)


def work() -> None:
    with open("/etc/hostname") as file:
        file.read()
    with socket.socket():
        pass
    memory = SharedMemory(create=True, size=4096)
    memory.close()
    memory.unlink()
    thread = threading.Thread(target=print, args=("",))
    thread.start()
    thread.join()
    subprocess.run([sys.executable, "-c", ""], check=True)


def cycle() -> None:
    file = open("/etc/hostname")  # noqa: SIM115
    ring: list[object] = [file]
    ring.append(ring)


@pytest.mark.parametrize("clean", [work, cycle])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_cleans_up_passes(clean: Callable[[], None]) -> None:
    work()  # Python's own tracker of resources is started once
    with assert_no_leaks():
        clean()


def test_a_thread_that_is_about_to_end_is_waited_for() -> None:
    stop = threading.Event()
    with assert_no_leaks(grace_s=30.0):
        threading.Thread(target=stop.wait, args=(30,)).start()
        threading.Timer(0.05, stop.set).start()


def test_what_is_ignored_or_tolerated_does_not_count() -> None:
    fds = []
    with assert_no_leaks(ignore=["/etc/hostname", OTHERS], grace_s=0.0):
        fds.append(os.open("/etc/hostname", os.O_RDONLY))
    with assert_no_leaks(tolerance={"descriptor": 1}, ignore=[OTHERS], grace_s=0.0):
        fds.append(os.open("/etc/passwd", os.O_RDONLY))
    for fd in fds:
        os.close(fd)
    with pytest.raises(ValueError, match="no such kind"), assert_no_leaks(kinds=["files"]):
        pass


def test_what_the_body_raises_goes_on() -> None:
    def fail() -> None:
        fds.append(os.open("/etc/hostname", os.O_RDONLY))
        raise KeyError

    fds: list[int] = []
    with pytest.raises(KeyError), assert_no_leaks():
        fail()
    os.close(fds[0])
