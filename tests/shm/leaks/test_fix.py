"""What is orphaned goes; what is used, re-made, another's or wanted stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mcpd.shm.leaks import ORPHANED, UNKNOWN, Entry, Options, scan
from mcpd.shm.leaks.fix import KEPT, REMOVED, WOULD_REMOVE, Action, remove, unlink_file
from mcpd.shm.leaks.holding import FREE, HELD, NOT_TOLD, ask, lease
from mcpd.shm.leaks.record import Record, read_record
from mcpd.shm.leaks.recorder import Recorder
from tests.shm.leaks.plant import (
    HOLD,
    MAKE,
    SHM,
    child,
    dead_pid,
    find,
    planted,
    torch_name,
    unique,
)

OPTIONS = Options(min_age_s=0, alone=True, record=Record())


def fix(*names: str, options: Options = OPTIONS, dry_run: bool = False) -> list[Action]:
    """Only ever by name: the machine may have other leftovers, which are not ours to remove."""
    return remove(scan(options=options), options, names=names, dry_run=dry_run)


def key_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


@pytest.fixture
def dir_fd() -> Iterator[int]:
    fd = os.open(SHM, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_orphaned_name_is_removed_and_told() -> None:
    name = torch_name(dead_pid())
    with planted(name) as path:
        (would,) = fix(name, dry_run=True)
        assert (would.outcome, path.exists()) == (WOULD_REMOVE, True)
        (action,) = fix(name)
        assert (action.outcome, action.entry.name, path.exists()) == (REMOVED, name, False)
        assert fix(name) == []


def test_what_is_in_use_again_when_it_is_to_be_removed_is_kept() -> None:
    name = torch_name(dead_pid())
    with planted(name) as path:
        entries = scan(options=OPTIONS)
        assert find(entries, name).verdict == ORPHANED
        with child(HOLD, str(path), "mapped") as holder:
            (action,) = remove(entries, OPTIONS, names=[name])
        assert (action.outcome, path.exists()) == (KEPT, True)
        assert str(holder.pid) in action.reason


def test_name_that_was_made_anew_meanwhile_survives(dir_fd: int) -> None:
    name = torch_name(dead_pid())
    with planted(name) as path, ExitStack() as stack:
        entries = scan(options=OPTIONS)
        old = key_of(path)
        # Its number must not be given to the next file.
        stack.callback(os.close, os.open(path, os.O_RDONLY))
        path.unlink()
        path.write_bytes(b"wanted")
        (action,) = remove(entries, OPTIONS, names=[name])
        assert action.outcome == KEPT
        assert "another of the same name" in action.reason
        why = unlink_file(dir_fd, name.encode(), old)
        assert why == "the name stands for another file now"
        assert path.read_bytes() == b"wanted"


def test_file_that_somebody_opens_while_it_is_about_to_go_stays(dir_fd: int) -> None:
    name = torch_name(dead_pid())
    with planted(name) as path:
        with lease(dir_fd, name.encode(), key_of(path)) as answer:
            assert answer.stands()
            with pytest.raises(BlockingIOError):  # who does not wait is told so
                os.open(path, os.O_RDWR | os.O_NONBLOCK)
            assert not answer.stands()
        with open(path, "rb"):
            assert unlink_file(dir_fd, name.encode(), key_of(path)) == "somebody has it open"
        assert unlink_file(dir_fd, name.encode(), key_of(path)) == ""


def test_the_kernel_tells_whether_anybody_has_a_file(dir_fd: int) -> None:
    with planted(f"asked-{unique()}") as path:
        name = path.name.encode()
        assert ask(dir_fd, name, key_of(path)) == FREE
        with child(HOLD, str(path), "mapped"):
            assert ask(dir_fd, name, key_of(path)) == HELD
        with open(path, "rb"):
            assert ask(dir_fd, name, key_of(path)) == HELD
        assert ask(dir_fd, name, (0, 0)) == NOT_TOLD
        assert ask(dir_fd, b"no-such-name", key_of(path)) == NOT_TOLD


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file to another user")
def test_what_is_another_users_is_removed_by_name_alone() -> None:
    name = torch_name(dead_pid())
    with planted(name) as path:
        os.chown(path, 12345, 12345)
        entries = [find(scan(options=OPTIONS), name)]
        (action,) = remove(entries, OPTIONS)
        assert (action.outcome, path.exists()) == (KEPT, True)
        assert "--name" in action.reason
        (action,) = remove(entries, OPTIONS, names=[name])
        assert (action.outcome, path.exists()) == (REMOVED, False)


def test_folder_goes_with_all_that_is_in_it_and_stays_if_one_file_is_used() -> None:
    name = f"joblib_memmapping_folder_{dead_pid()}_{unique()}"
    (SHM / name / "below").mkdir(parents=True)
    paths = [SHM / name / "a.pkl", SHM / name / "below" / "b.pkl"]
    for path in paths:
        path.write_bytes(bytes(4096))
    entries = scan(options=OPTIONS)
    with open(paths[1], "rb"):
        (action,) = remove(entries, OPTIONS, names=[name])
    assert action.outcome == KEPT
    assert all(path.exists() for path in paths)
    (action,) = fix(name)
    assert (action.outcome, (SHM / name).exists()) == (REMOVED, False)


def test_what_only_its_holders_can_give_up_is_kept_with_the_reason() -> None:
    entry = Entry(kind="memfd", name=f"mcpd:payload:{unique()}", verdict=ORPHANED, reason="")
    (action,) = remove([entry], OPTIONS, names=[entry.name])
    assert (action.outcome, action.reason) == (
        *(KEPT, "it goes when the processes that keep it end"),
    )


def test_living_programs_that_will_open_a_name_again_keep_it(tmp_path: Path) -> None:
    """A corpus: each has closed what it, or its parent, opens again after the removal."""
    file, word = tmp_path / "creators.jsonl", unique()
    with ExitStack() as stack:
        recorder = stack.enter_context(Recorder(file))
        makers = {
            name: stack.enter_context(child(MAKE, str(SHM / name)))
            for name in (f"plain-{word}", f"psm_{word[:8]}", f"parent-{word}")
        }
        # Names with a number: of their maker, and of one that made it for a child.
        torch = stack.enter_context(child(MAKE, str(SHM / f"torch_0_{word}")))
        names = [*makers, torch_name(torch.pid)]
        os.rename(SHM / f"torch_0_{word}", SHM / names[-1])
        recorder.step(1)
        for maker in (*makers.values(), torch):
            maker.tell("close")
        left = stack.enter_context(child(MAKE, str(SHM / f"left-{word}")))
        recorder.step(1)
        recorder.step(0.1)
        left.tell("close")
        left.kill()
        names.append(f"left-{word}")
        for name in names:
            stack.callback((SHM / name).unlink, missing_ok=True)
        # All of one process group, as the children of a test are: those that live protect the
        # one that is dead; so it is judged as if it had been alone.
        options = Options(min_age_s=0, alone=True, record=read_record([file]))
        entry = find(scan(options=options), names[-1])
        assert entry.verdict == UNKNOWN
        assert "same process group lives" in entry.reason
        assert [a for a in fix(*names, options=options) if a.outcome == REMOVED] == []
        for maker in makers.values():
            maker.tell("open")
        assert all((SHM / name).exists() for name in names)
