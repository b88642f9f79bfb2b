"""The record of makers: written as names are made, bounded, kept over restarts, and believed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mcpd.shm.errors import AlreadyExists
from mcpd.shm.leaks import ORPHANED, UNKNOWN, Entry, Options, scan
from mcpd.shm.leaks.record import Made, Record, boot_id, default_file, read_lines, read_record
from mcpd.shm.leaks.recorder import Recorder
from tests.shm.leaks.plant import MAKE, SHM, Child, child, find, unique

WAYS = [
    "inotify",
    pytest.param("fanotify", marks=pytest.mark.skipif(os.getuid() != 0, reason="root")),
]


def look(file: Path, name: str) -> Entry:
    options = Options(min_age_s=0, alone=True, record=read_record([file]))
    return find(scan(options=options), name)


def until(recorder: Recorder, file: Path, condition: Callable[[Made], bool]) -> Made:
    """Has the recorder work until some line is as wanted."""
    for _ in range(200):
        recorder.step(0.1)
        for made in read_lines(file):
            if condition(made):
                return made
    raise AssertionError(f"not recorded: {file.read_text()}")


def made_here(**values: object) -> Made:
    made = Made(
        *(),
        boot=boot_id(),
        name="x",
        device=1,
        inode=2,
        time_s=1.0,
        pid=os.getpid(),
        start_ticks=1,
        pid_ns=os.readlink("/proc/self/ns/pid"),
    )
    return replace(made, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", WAYS)
def test_maker_is_known_and_once_it_is_dead_its_name_is_orphaned(tmp_path: Path, how: str) -> None:
    file, name = tmp_path / "state" / "creators.jsonl", f"made-{unique()}"
    with Recorder(file, how=how) as recorder:
        maker = started_alone(name)
        try:
            made = until(recorder, file, lambda made: made.name == name and made.mapped)
            assert (made.pid, made.how, made.sure, made.uid) == (maker.pid, how, True, os.getuid())
        finally:
            maker.kill()
    try:
        assert look(tmp_path / "none", name).verdict == UNKNOWN
        entry = look(file, name)
        assert (entry.verdict, entry.owner_pid) == (ORPHANED, maker.pid)
    finally:
        (SHM / name).unlink()


def started_alone(name: str) -> Child:
    """A maker of a process group of its own, so that this test's processes do not protect it."""
    code = f"import os; os.setpgid(0, 0)\n{MAKE}"
    return Child(code, str(SHM / name))


def test_file_that_was_only_written_may_be_kept_on_purpose(tmp_path: Path) -> None:
    file, name = tmp_path / "creators.jsonl", f"copied-{unique()}"
    with Recorder(file) as recorder:
        done = subprocess.Popen(
            ["/bin/sh", "-c", f"echo data > {SHM / name}; read line"],
            stdin=subprocess.PIPE,
            process_group=0,
        )
        until(recorder, file, lambda made: made.name == name)
        done.communicate()
    entry = look(file, name)
    (SHM / name).unlink()
    assert entry.verdict == UNKNOWN
    assert "kept on purpose" in entry.settle or "may have been" in entry.reason


def test_record_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "creators.jsonl"
    names = [f"first-{unique()}", f"second-{unique()}"]
    for name in names:
        with Recorder(file) as recorder, child(MAKE, str(SHM / name)):
            until(recorder, file, lambda made, name=name: made.name == name)  # type: ignore[misc]
        (SHM / name).unlink()
    assert list(dict.fromkeys(m.name for m in read_lines(file) if m.name in names)) == names


def test_second_recorder_of_a_file_is_refused(tmp_path: Path) -> None:
    with Recorder(tmp_path / "creators.jsonl"), pytest.raises(AlreadyExists, match="another"):
        Recorder(tmp_path / "creators.jsonl")


def test_record_that_has_grown_keeps_what_exists(tmp_path: Path) -> None:
    file, folder = tmp_path / "creators.jsonl", tmp_path / "shm"
    folder.mkdir()
    (folder / "there").touch()
    status = (folder / "there").stat()
    kept = made_here(name="there", device=status.st_dev, inode=status.st_ino)
    gone = [made_here(name=f"gone{n}", inode=status.st_ino + 10**9 + n) for n in range(100)]
    lines = [replace(kept, boot="an earlier one"), *gone, kept]
    file.write_text("".join(f"{made.line()}\n" for made in lines))
    with Recorder(file, folder, how="inotify", max_nbytes=4096):
        assert [made.name for made in read_lines(file)] == ["there"]
        assert file.stat().st_size < 4096


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "null", '{"v": 1}', '{"v": 2}', "x" * 5000, made_here().line()[:-1],
     made_here().line().replace('"pid": ', '"pid": "a", "was": '), "\udcff"],
)  # fmt: skip
def test_lines_that_are_no_record_are_passed_over(tmp_path: Path, line: str) -> None:
    file = tmp_path / "creators.jsonl"
    file.write_text(f"{line}\n{made_here().line()}\n", errors="surrogateescape")
    assert list(read_lines(file)) == [made_here()]


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file to another user")
def test_record_that_others_could_have_written_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "creators.jsonl"
    file.write_text(f"{made_here().line()}\n")
    assert len(read_record([file])) == 1
    file.chmod(0o666)
    assert len(read_record([file])) == 0
    file.chmod(0o644)
    os.chown(file, 12345, 12345)
    assert len(read_record([file])) == 0


def test_record_of_another_boot_or_file_says_nothing_of_this_one() -> None:
    record = Record([made_here(name="x", device=1, inode=2)])
    assert record.find((1, 2), b"x") == made_here()
    assert record.find((1, 2), b"y") is None
    assert record.find((1, 3), b"x") is None


def test_each_user_has_a_record_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/somebody/.state")
    assert default_file() == Path("/home/somebody/.state/mcpd/creators.jsonl")
