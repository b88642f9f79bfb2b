"""What the daemon names in /dev/shm is unlinked, whoever dies and in whatever order."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpd.daemon.reaper import Reaper, reap
from mcpd.shm.segment import SHM_DIRECTORY, Owner, create_posix, current_owner, posix_name
from tests.support.daemon import wait_until

STREAM_ID = 918273


@pytest.fixture
def name() -> Iterator[str]:
    """A name as the daemon would give it, from this process."""
    name = posix_name(current_owner(), STREAM_ID)
    yield name
    (SHM_DIRECTORY / name).unlink(missing_ok=True)


def test_names_still_owned_at_end_of_file_are_unlinked(name: str) -> None:
    segment = create_posix(current_owner(), STREAM_ID, 4096)
    ours, theirs = socket.socketpair()
    with segment, ours:
        ours.sendall(f"+{name}\n".encode())
        ours.shutdown(socket.SHUT_WR)
        reap(theirs)
        assert not (SHM_DIRECTORY / name).exists()


def test_names_given_back_are_left_alone(name: str) -> None:
    segment = create_posix(current_owner(), STREAM_ID, 4096)
    ours, theirs = socket.socketpair()
    with segment, ours:
        ours.sendall(f"+{name}\n-{name}\n".encode())
        ours.shutdown(socket.SHUT_WR)
        reap(theirs)
        assert (SHM_DIRECTORY / name).exists()
        segment.unlink()


def test_what_is_not_a_segment_of_ours_is_never_unlinked(tmp_path: Path) -> None:
    victim = SHM_DIRECTORY / f"not-mcpd-{os.getpid()}"
    victim.write_text("keep")
    ours, theirs = socket.socketpair()
    try:
        with ours:
            ours.sendall(f"+{victim.name}\n+../etc/passwd\n+\n".encode())
            ours.shutdown(socket.SHUT_WR)
            reap(theirs)
        assert victim.exists()
    finally:
        victim.unlink()


def test_process_outlives_signals_and_unlinks_when_its_daemon_is_gone(name: str) -> None:
    async def run() -> None:
        reaper = Reaper()
        reaper.own(name)
        segment = create_posix(current_owner(), STREAM_ID, 4096)
        with segment:
            await asyncio.to_thread(wait_for_ignored_signals, reaper.pid)
            os.kill(reaper.pid, signal.SIGINT)
            os.kill(reaper.pid, signal.SIGTERM)
            reaper.close()
            assert not (SHM_DIRECTORY / name).exists()

    asyncio.run(run())


def wait_for_ignored_signals(pid: int) -> None:
    """Waits until the process has told the kernel to ignore SIGTERM."""

    def ignores() -> bool:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) & 1 << (signal.SIGTERM - 1))
        return False

    wait_until(ignores, 10, "the reaper ignores SIGTERM")


def test_process_that_was_killed_is_started_again_with_all_names(name: str) -> None:
    async def run() -> None:
        reaper = Reaper()
        reaper.own(name)
        segment = create_posix(current_owner(), STREAM_ID, 4096)
        first = reaper.pid
        with segment:
            os.kill(first, signal.SIGKILL)
            async with asyncio.timeout(10):
                while reaper.pid == first:
                    await asyncio.sleep(0.005)
            reaper.close()
            assert not (SHM_DIRECTORY / name).exists()

    asyncio.run(run())


def test_nothing_to_reap_starts_no_process() -> None:
    reaper = Reaper()
    assert reaper.pid == 0
    reaper.close()


def test_a_name_says_whose_it_is() -> None:
    assert posix_name(Owner(1, 2, 3), 4) == "mcpd.1.2.3.4"
