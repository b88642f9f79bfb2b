"""Segments: reserved, sealed, named after their owner, and swept when he is dead."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.shm import segment
from mcpd.shm.errors import AlreadyExists, InvalidRequest, OutOfMemory
from mcpd.shm.segment import (
    SHM_DIRECTORY,
    Owner,
    create_memfd,
    create_posix,
    current_owner,
    owner_alive,
    parse_posix_name,
    posix_name,
    process_start_ticks,
    sweep,
)
from tests.support.descriptors import no_descriptor_leaked
from tests.support.segments import leave_segment

NBYTES = 3 * 4096


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    with no_descriptor_leaked():
        yield
    left = [name for name in os.listdir(SHM_DIRECTORY) if f".{os.getpid()}." in name]
    assert left == []


@pytest.fixture
def dead_owner() -> Owner:
    """A process that was, and is no more."""
    process = subprocess.Popen(["/bin/true"])
    ticks = process_start_ticks(process.pid)
    process.wait()
    return Owner(os.getuid(), process.pid, ticks or 1)


def test_memfd_is_reserved_zero_and_close_on_exec() -> None:
    with create_memfd("mcpd:payload:x", NBYTES) as made:
        status = os.fstat(made.fd)
        assert (status.st_size, status.st_blocks * 512) == (NBYTES, NBYTES)
        assert os.pread(made.fd, NBYTES, 0) == bytes(NBYTES)
        assert not os.get_inheritable(made.fd)
        assert os.readlink(f"/proc/self/fd/{made.fd}").startswith("/memfd:mcpd:payload:x")
        assert made.shm_name == ""


def test_memfd_cannot_be_resized() -> None:
    with create_memfd("x", NBYTES) as made:
        for nbytes in (0, NBYTES - 1, NBYTES + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(made.fd, nbytes)


def test_after_the_seal_standing_mappings_write_and_new_ones_cannot() -> None:
    with create_memfd("x", NBYTES) as made:
        writer = mmap.mmap(made.fd, NBYTES)
        made.seal_future_write()
        writer[0] = 7
        with pytest.raises(PermissionError):
            mmap.mmap(made.fd, NBYTES)
        with pytest.raises(PermissionError):
            os.pwrite(made.fd, b"x", 0)
        reopened = os.open(f"/proc/self/fd/{made.fd}", os.O_RDWR)
        with pytest.raises(PermissionError):
            mmap.mmap(reopened, NBYTES)
        os.close(reopened)
        with mmap.mmap(made.fd, NBYTES, prot=mmap.PROT_READ) as reader:
            assert reader[0] == 7
        with pytest.raises(PermissionError):  # nor can anybody add or take a seal
            fcntl.fcntl(made.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        writer.close()


def test_read_only_descriptor_maps_for_reading_alone() -> None:
    with create_memfd("x", NBYTES) as made:
        fd = made.open_read_only()
        with pytest.raises(PermissionError):
            mmap.mmap(fd, NBYTES)
        mmap.mmap(fd, NBYTES, prot=mmap.PROT_READ).close()
        assert not os.get_inheritable(fd)
        os.close(fd)


@pytest.mark.parametrize("nbytes", [0, -1, 2**62 + 1, 2**70])
def test_size_out_of_bounds_makes_nothing(nbytes: int) -> None:
    with pytest.raises(InvalidRequest, match=str(nbytes)):
        create_memfd("x", nbytes)
    with pytest.raises(InvalidRequest, match=str(nbytes)):
        create_posix(current_owner(), 1, nbytes)


def test_more_than_the_machine_has_is_an_error_with_figures() -> None:
    with pytest.raises(
        OutOfMemory, match=rf"{2**45} bytes cannot be reserved: the machine has \d+"
    ):
        create_memfd("x", 2**45)
    with pytest.raises(OutOfMemory, match=r"/dev/shm has \d+ bytes free"):
        create_posix(current_owner(), 1, 2**45)


def test_file_system_that_is_full_is_an_error_and_leaves_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # More than the whole file system: refused before any of it is taken.
    whole = os.statvfs(SHM_DIRECTORY)
    asked = whole.f_blocks * whole.f_frsize + 4096
    monkeypatch.setattr(segment, "available_nbytes", lambda: 2 * asked)
    monkeypatch.setattr(segment, "_RESERVE_STEP_NBYTES", 2 * asked)
    with pytest.raises(OutOfMemory, match="No space left on device"):
        create_posix(current_owner(), 1, asked)


def test_posix_segment_is_private_named_and_unlinked_once() -> None:
    owner = current_owner()
    with create_posix(owner, 42, NBYTES) as made:
        path = SHM_DIRECTORY / posix_name(owner, 42)
        status = path.stat()
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert (status.st_size, status.st_blocks * 512) == (NBYTES, NBYTES)
        assert made.shm_name == f"/{path.name}"
        assert not os.get_inheritable(made.fd)
        with pytest.raises(AlreadyExists, match="exists"):
            create_posix(owner, 42, NBYTES)
        made.unlink()
        made.unlink()
        assert not path.exists()


def test_exit_of_a_process_that_mapped_a_posix_segment_leaves_its_name() -> None:
    """Python's resource tracker would unlink it: it must not know of it."""
    owner = current_owner()
    with create_posix(owner, 43, NBYTES) as made:
        script = (
            "import mmap, os, posix_ipc, sys\n"
            "fd = posix_ipc.SharedMemory(sys.argv[1]).fd\n"
            "mmap.mmap(fd, 0)\n"
        )
        subprocess.run([sys.executable, "-P", "-c", script, made.shm_name], check=True)
        assert (SHM_DIRECTORY / made.name).exists()
        made.unlink()


def test_name_tells_its_owner() -> None:
    owner = Owner(1000, 77, 123456)
    assert parse_posix_name(f"/{posix_name(owner, 9)}") == (owner, 9)


@pytest.mark.parametrize(
    "name",
    [
        *("", "mcpd", "mcpd.1.2.3", "mcpd.1.2.3.4.5", "mcpd.1.2.3.x", "mcpd.1.2.3.-4"),
        *("other.1.2.3.4", "mcpd.1.2.3.\u0664", "mcpd.1.2.3.", "mcpd-1.2.3.4"),
    ],
)
def test_foreign_names_are_nobodys(name: str) -> None:
    assert parse_posix_name(name) is None


@given(st.text())
def test_any_text_is_a_name_of_ours_or_not(name: str) -> None:
    parsed = parse_posix_name(name)
    if parsed is not None:
        owner, stream_id = parsed
        assert min(*owner, stream_id) >= 0


def test_owner_is_told_from_a_later_process_with_his_number() -> None:
    owner = current_owner()
    assert owner_alive(owner)
    assert not owner_alive(owner._replace(start_ticks=owner.start_ticks + 1))


def test_process_that_nobody_has_waited_for_is_dead() -> None:
    process = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_start_ticks(process.pid) is None
    process.wait()


def test_sweep_takes_names_of_dead_owners_and_leaves_the_others(
    tmp_path: Path, dead_owner: Owner
) -> None:
    alive = posix_name(current_owner(), 1)
    foreign = posix_name(dead_owner._replace(uid=dead_owner.uid + 1), 1)
    dead = [posix_name(dead_owner, 1), posix_name(dead_owner, 2)]
    for name in (alive, foreign, *dead, "other", "mcpd.conf"):
        (tmp_path / name).write_bytes(b"x")
    assert sorted(sweep(tmp_path)) == sorted(dead)
    assert sorted(os.listdir(tmp_path)) == sorted([alive, foreign, "other", "mcpd.conf"])


def test_sweep_finds_a_real_segment_of_a_dead_owner(dead_owner: Owner) -> None:
    name = leave_segment(dead_owner, 5, NBYTES)
    assert name in sweep()
    assert not (SHM_DIRECTORY / name).exists()


def test_sweep_leaves_what_a_process_that_proc_does_not_show_has_claimed(dead_owner: Owner) -> None:
    name = posix_name(dead_owner, 6)  # as a daemon in another pid namespace would look from here
    with create_posix(dead_owner, 6, NBYTES) as made:
        made.close()
        assert name not in sweep()
        assert (SHM_DIRECTORY / name).exists()
        made.unlink()


def test_sweep_leaves_an_empty_file_that_is_just_being_made(
    tmp_path: Path, dead_owner: Owner
) -> None:
    path = tmp_path / posix_name(dead_owner, 1)
    path.touch()
    assert sweep(tmp_path) == []


def test_sweep_leaves_what_only_has_the_name_of_a_segment(
    tmp_path: Path, dead_owner: Owner
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"x")
    (tmp_path / posix_name(dead_owner, 1)).symlink_to(victim)
    os.mkfifo(tmp_path / posix_name(dead_owner, 2))
    (tmp_path / posix_name(dead_owner, 3)).mkdir()
    before = sorted(os.listdir(tmp_path))
    assert sweep(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == before


def test_sweep_takes_a_hard_link_of_ours_and_not_the_file(
    tmp_path: Path, dead_owner: Owner
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"x")
    os.link(victim, tmp_path / posix_name(dead_owner, 1))
    assert sweep(tmp_path) == [posix_name(dead_owner, 1)]
    assert victim.read_bytes() == b"x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_sweep_leaves_another_users_file_under_our_name(tmp_path: Path, dead_owner: Owner) -> None:
    path = tmp_path / posix_name(dead_owner, 1)
    path.write_bytes(b"x")
    os.chown(path, 65534, 65534)
    assert sweep(tmp_path) == []
    assert path.exists()
