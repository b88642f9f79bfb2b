"""Verdicts on what is in /dev/shm, whoever made it.

No mapper alone proves nothing: a producer may have closed what its consumer has not opened yet.
Orphaned is only what a known process made that is dead, what nothing has mapped or open, and what
has been left alone for a while. Everything else is in use, or unknown with what would settle it.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from mcpd.shm.leaks.creators import ALIVE, DEAD, UNSURE, Creator, Living
from mcpd.shm.leaks.entry import IN_USE, ORPHANED, UNKNOWN, Entry, escape
from mcpd.shm.leaks.holding import FREE, HELD, ask
from mcpd.shm.leaks.places import Name
from mcpd.shm.leaks.processes import Hold, Key, Process
from mcpd.shm.leaks.programs import recognise
from mcpd.shm.leaks.record import Record
from mcpd.shm.leaks.sysv import SysvSegment
from mcpd.shm.segment import parse_posix_name

MIN_AGE_S = 60.0


@dataclass
class Judge:
    """All that verdicts are made from.

    Attributes:
        living: The processes there are.
        record: Who made what.
        min_age_s: What was made or changed since is not called orphaned.
        unreadable: How many processes could not be looked into.
        holders: Who has which object.
    """

    living: Living
    record: Record
    min_age_s: float = MIN_AGE_S
    unreadable: int = 0
    holders: dict[Key, list[Process]] = field(default_factory=dict)

    @classmethod
    def of(cls, living: Living, record: Record, min_age_s: float = MIN_AGE_S) -> Judge:
        """With the holders that the processes are."""
        judge = cls(living, record, min_age_s)
        for process in living.processes:
            judge.unreadable += not process.readable
            for key in process.holds:
                judge.holders.setdefault(key, []).append(process)
        return judge

    def name(self, name: Name) -> Entry:
        """The entry of a name."""
        known = recognise(name.name)
        entry = _entry_of(name, known.program.name if known is not None else "")
        holders = self._note_holders(entry, name.keys)
        creator = self._creator(name)
        if creator is not None:
            entry.owner_pid, entry.owner = creator.pid, creator.name
            entry.owner_alive = creator.state == ALIVE
        if holders:
            dead = f"; {creator.reason}" if creator and creator.state == DEAD else ""
            _decide(entry, IN_USE, _held_by(holders) + dead)
        elif known is not None and known.program.kept:
            _decide(entry, IN_USE, f"{known.program.name} keeps it on purpose")
        elif creator is None:
            reason = "nothing that we see has it mapped or open; who made it is not known"
            settle = known.program.note if known is not None and known.program.note else ""
            _decide(entry, UNKNOWN, reason, settle or "`mcpd leaks record` notes who makes what")
        elif creator.state != DEAD:
            verdict = UNKNOWN if creator.state == UNSURE else IN_USE
            more = " and may open it again" if creator.state == ALIVE else ""
            _decide(entry, verdict, creator.reason + more, creator.settle)
        else:
            self._judge_dead(entry, name, creator)
        return entry

    def sysv(self, segment: SysvSegment) -> Entry:
        """The entry of a System V segment: who is attached is the kernel's own word."""
        creator = self.living.by_name(segment.creator_pid, segment.created_s)
        entry = Entry(
            kind="sysv",
            name=f"shmid {segment.shmid} key {segment.key & 0xFFFFFFFF:#010x}",
            verdict=UNKNOWN,
            reason="",
            owner_pid=segment.creator_pid,
            owner=creator.name,
            owner_alive=creator.state == ALIVE,
            uid=segment.uid,
            user=user_name(segment.uid),
            nbytes=segment.nbytes,
            resident_nbytes=segment.resident_nbytes,
            age_s=max(0.0, time.time() - segment.changed_s),
            details={"shmid": segment.shmid, "key": segment.key, "attached": segment.attached},
        )
        self._note_holders(entry, {(-1, segment.shmid)})
        if segment.attached:
            _decide(entry, IN_USE, f"{segment.attached} processes have it attached")
        elif creator.state == ALIVE:
            _decide(entry, IN_USE, f"{creator.reason} and may attach again")
        elif creator.state == UNSURE:
            _decide(entry, UNKNOWN, creator.reason, creator.settle)
        elif entry.age_s is not None and entry.age_s < self.min_age_s:
            self._too_young(entry, creator)
        else:
            _decide(entry, ORPHANED, f"{creator.reason}, nobody is attached")
            entry.fixable = True
        return entry

    def nameless(self, names: Sequence[Name]) -> list[Entry]:
        """Entries of what processes hold that has no name in any of the places."""
        named = {key for name in names for key in name.keys}
        found = []
        for key, holders in sorted(self.holders.items()):
            hold = _best([process.holds[key] for process in holders])
            if key in named or key[0] == -1 or hold.name.startswith(b"/memfd:mcpd:"):
                continue
            memfd = hold.name.startswith(b"/memfd:")
            if not memfd and not hold.deleted:
                continue  # of a namespace that is not looked into
            entry = Entry(
                kind="memfd" if memfd else "deleted",
                name=escape(hold.name.removeprefix(b"/memfd:" if memfd else b"/dev/shm/")),
                verdict=IN_USE,
                reason=_held_by(holders),
                nbytes=hold.nbytes,
                resident_nbytes=hold.resident_nbytes,
                details={"inode": key[1]},
            )
            known = recognise(hold.name.rpartition(b"/")[2]) if not memfd else None
            entry.program = known.program.name if known is not None else ""
            self._note_holders(entry, {key})
            found.append(entry)
        return found

    def _creator(self, name: Name) -> Creator | None:
        ours = parse_posix_name(os.fsdecode(name.name))
        if ours is not None:
            return self.living.by_start(ours[0].pid, ours[0].start_ticks, "mcpd")
        key = name.status.st_dev, name.status.st_ino
        made = self.record.find(key, name.name)
        if made is not None:
            return self.living.by_record(made)
        known = recognise(name.name)
        if known is None or not known.pid:
            return None
        return self.living.by_name(known.pid, name.made_before_s, known.program.marker)

    def _judge_dead(self, entry: Entry, name: Name, creator: Creator) -> None:
        known = recognise(name.name)
        made = self.record.find((name.status.st_dev, name.status.st_ino), name.name)
        keeper = known.program.keeper if known is not None else ""
        waiting = [
            process.pid
            for process in self.living.processes
            if keeper and (process.comm, process.uid) == (keeper, name.status.st_uid)
        ]
        if entry.age_s is not None and entry.age_s < self.min_age_s:
            self._too_young(entry, creator)
        elif waiting:
            reason = f"{creator.reason}, but {keeper} {waiting[0]} lives, which removes such names"
            _decide(entry, UNKNOWN, reason, f"the end of process {waiting[0]}")
        elif known is None and made is not None and not made.mapped:
            reason = f"{creator.reason}; it was written like a file, and never seen mapped"
            _decide(entry, UNKNOWN, reason, "whoever put it there: it may be kept on purpose")
        elif not name.whole:
            _decide(entry, UNKNOWN, f"{creator.reason}; not all below it is seen", "run as root")
        else:
            self._ask_kernel(entry, name, creator)

    def _ask_kernel(self, entry: Entry, name: Name, creator: Creator) -> None:
        answer = ask_name(name)
        if answer == HELD:
            reason = f"{creator.reason}, but somebody whom we cannot see has it open"
            _decide(entry, IN_USE, reason)
        elif answer != FREE and self.unreadable:
            reason = f"{creator.reason}; {self.unreadable} processes could not be looked into"
            _decide(entry, UNKNOWN, reason, "run this as root")
        else:
            _decide(entry, ORPHANED, f"{creator.reason}, nothing has it mapped or open")
            entry.fixable = True

    def _too_young(self, entry: Entry, creator: Creator) -> None:
        reason = f"{creator.reason}, but it was changed {entry.age_s or 0:.0f} s ago"
        _decide(entry, UNKNOWN, reason, f"ask again when it is {self.min_age_s:g} s old")

    def _note_holders(self, entry: Entry, keys: set[Key]) -> list[Process]:
        holders = {p.pid: p for key in keys for p in self.holders.get(key, ())}
        entry.held_by = sorted(holders)
        entry.mapped_by = sorted(
            p.pid for p in holders.values() if any(k in p.holds and p.holds[k].mapped for k in keys)
        )
        return [holders[pid] for pid in entry.held_by]


def ask_name(name: Name) -> str:
    """What the kernel says about all the files that a name stands for."""
    dir_fd = os.open(name.place.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if name.kind != "folder":
            return ask(dir_fd, name.name, (name.status.st_dev, name.status.st_ino))
        answers = {FREE}
        path = os.path.join(os.fsencode(name.place.path), name.name)
        for folder, _, files in os.walk(path):
            for file in files:
                status = os.lstat(os.path.join(folder, file))
                below = os.path.relpath(os.path.join(folder, file), os.fsencode(name.place.path))
                answers.add(ask(dir_fd, below, (status.st_dev, status.st_ino)))
    except FileNotFoundError:
        return HELD  # somebody is at work in it
    finally:
        os.close(dir_fd)
    return HELD if HELD in answers else answers.pop() if len(answers) == 1 else "not told"


def user_name(uid: int) -> str:
    """A user's name, or number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _entry_of(name: Name, program: str) -> Entry:
    ours = parse_posix_name(os.fsdecode(name.name))
    details: dict[str, object] = {
        "path": escape(os.path.join(os.fsencode(name.place.path), name.name)),
        "device": name.status.st_dev,
        "inode": name.status.st_ino,
        "mode": f"{name.status.st_mode & 0o7777:04o}",
    }
    if ours is not None:
        details |= {"uid": ours[0].uid, "stream": ours[1]}
    return Entry(
        kind="segment" if ours is not None else name.kind,
        name=escape(name.name),
        verdict=UNKNOWN,
        reason="",
        program=program,
        uid=name.status.st_uid,
        user=user_name(name.status.st_uid),
        nbytes=name.nbytes,
        resident_nbytes=name.resident_nbytes,
        age_s=max(0.0, time.time() - name.changed_s),
        place=name.place.label,
        details=details,
    )


def _decide(entry: Entry, verdict: str, reason: str, settle: str = "") -> None:
    entry.verdict, entry.reason, entry.settle = verdict, reason, settle


def _held_by(holders: Sequence[Process]) -> str:
    shown = ", ".join(f"{process.comm} {process.pid}" for process in holders[:3])
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    return f"{shown}{more} {'has' if len(holders) == 1 else 'have'} it"


def _best(holds: Sequence[Hold]) -> Hold:
    """The one that tells most: a descriptor tells the true size, a mapping only what is mapped."""
    return max(holds, key=lambda hold: (hold.resident_nbytes is not None, hold.nbytes))
