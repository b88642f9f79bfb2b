"""Names, geometry and memory are decided in numbers, before anything is allocated."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mcpd.daemon.limits import (
    HEADROOM_NBYTES,
    MemoryLedger,
    available_memory,
    check_name,
    check_spec,
)
from mcpd.shm.errors import InvalidRequest, LimitExceeded, OutOfMemory
from mcpd.shm.messages import StreamSpec

MIB = 1 << 20


@pytest.mark.parametrize("name", ["cam0", "a", "0.front-door_2", "x" * 63])
def test_stream_name_of_letters_digits_dots_is_accepted(name: str) -> None:
    check_name(name, "frames", worker=False)


@pytest.mark.parametrize(
    "name", ["", "a/b", "../x", ".hidden", "~1-2", "a@b", "x" * 64, "ä", "a\n"]
)
def test_other_stream_names_are_refused_with_the_rule(name: str) -> None:
    with pytest.raises(InvalidRequest, match="name") as caught:
        check_name(name, "frames", worker=False)
    assert "1 to 63" in caught.value.hint


def test_only_workers_make_results() -> None:
    check_name("cam0@trivial", "results", worker=True)
    with pytest.raises(InvalidRequest, match="only a worker"):
        check_name("cam0@trivial", "results", worker=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slots", 0),
        ("slots", 1),
        ("slots", -5),
        ("slots", 2**40),
        ("slots", 4097),
        ("slot_nbytes", 0),
        ("slot_nbytes", -1),
        ("slot_nbytes", 2**40 + 1),
        ("slot_nbytes", 2**63 - 1),
        ("history", 0),
        ("holds", 0),
    ],
)
def test_geometry_out_of_its_limits_is_refused_with_value_and_limit(field: str, value: int) -> None:
    values = {"slots": 8, "slot_nbytes": 4096, "history": 1, "holds": 2, field: value}
    with pytest.raises(InvalidRequest, match=f"{field} is {value}; it must be"):
        check_spec("cam0", msgspec.convert(values, StreamSpec))


def test_slots_must_leave_room_for_one_reader() -> None:
    assert check_spec("cam0", StreamSpec(slots=5, slot_nbytes=1)) == 4096
    with pytest.raises(LimitExceeded, match="has 4 slots and would need 5") as caught:
        check_spec("cam0", StreamSpec(slots=4, slot_nbytes=1))
    assert "slots=5" in caught.value.hint


def test_slot_size_is_rounded_up_to_pages() -> None:
    assert check_spec("cam0", StreamSpec(slots=8, slot_nbytes=4097)) == 8192


def test_frame_larger_than_the_slot_is_refused() -> None:
    spec = StreamSpec(slots=8, slot_nbytes=4096, format="rgb24", width=1920, height=1080)
    with pytest.raises(InvalidRequest, match="has 6220800 bytes, slot_nbytes is 4096"):
        check_spec("cam0", spec)


def test_odd_width_is_refused_only_where_pixels_share_chroma_in_pairs() -> None:
    spec = StreamSpec(slots=8, slot_nbytes=1 << 20, format="i420", width=641, height=479)
    assert check_spec("cam0", spec) == 1 << 20
    spec = StreamSpec(slots=8, slot_nbytes=1 << 20, format="yuyv422", width=641, height=480)
    with pytest.raises(InvalidRequest, match="641"):
        check_spec("cam0", spec)


def machine(root: Path, available_nbytes: int, cgroup: str = "0::/\n") -> Path:
    """A root with the files that admission reads."""
    (root / "proc/self").mkdir(parents=True)
    lines = f"MemTotal: 999999999 kB\nMemAvailable: {available_nbytes // 1024} kB\n"
    (root / "proc/meminfo").write_text(lines)
    (root / "proc/self/cgroup").write_text(cgroup)
    return root


def test_more_than_the_machine_has_is_refused_and_counts_nothing(tmp_path: Path) -> None:
    ledger = MemoryLedger(root=machine(tmp_path, HEADROOM_NBYTES + 100 * MIB))
    with pytest.raises(OutOfMemory, match=r"asks for 101\.0 MiB; 100\.0 MiB .*MemAvailable"):
        ledger.admit(101 * MIB, "stream 'cam0'")
    assert ledger.used_nbytes == 0
    ledger.admit(100 * MIB, "stream 'cam0'")


def test_memory_promised_but_not_yet_reserved_counts(tmp_path: Path) -> None:
    ledger = MemoryLedger(root=machine(tmp_path, HEADROOM_NBYTES + 100 * MIB))
    ledger.admit(60 * MIB, "stream 'a'")
    with pytest.raises(OutOfMemory):
        ledger.admit(60 * MIB, "stream 'b'")
    ledger.settle(60 * MIB)  # from here on MemAvailable tells
    ledger.admit(60 * MIB, "stream 'b'")


def test_configured_total_bounds_all_streams_together(tmp_path: Path) -> None:
    ledger = MemoryLedger(10 * MIB, root=machine(tmp_path, 1 << 40))
    ledger.admit(8 * MIB, "stream 'a'")
    with pytest.raises(LimitExceeded, match=r"8\.0 MiB of the configured 10\.0 MiB"):
        ledger.admit(3 * MIB, "stream 'b'")
    ledger.settle(8 * MIB)
    ledger.release(8 * MIB)
    ledger.admit(10 * MIB, "stream 'b'")


def test_every_ancestor_cgroup_is_a_limit(tmp_path: Path) -> None:
    machine(tmp_path, 1 << 40, "0::/outer/inner\n")
    for path, limit in (("outer", str(300 * MIB)), ("outer/inner", "max")):
        group = tmp_path / "sys/fs/cgroup" / path
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.max").write_text(limit)
        (group / "memory.current").write_text(str(250 * MIB))
        (group / "memory.stat").write_text(f"anon 5\ninactive_file {50 * MIB}\n")
    limits = dict(available_memory(tmp_path))
    assert limits[str(tmp_path / "sys/fs/cgroup/outer/memory.max")] == 100 * MIB
    assert len(limits) == 2  # "max" is none
    with pytest.raises(OutOfMemory, match=r"outer/memory\.max"):
        MemoryLedger(root=tmp_path).admit(50 * MIB, "stream 'cam0'")


def test_cgroup_v1_is_read_too(tmp_path: Path) -> None:
    machine(tmp_path, 1 << 40, "4:cpu,memory:/box\n0::/\n")
    group = tmp_path / "sys/fs/cgroup/memory/box"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(str(100 * MIB))
    (group / "memory.usage_in_bytes").write_text(str(30 * MIB))
    (group / "memory.stat").write_text("cache 1\ntotal_inactive_file 0\n")
    assert (str(group / "memory.limit_in_bytes"), 70 * MIB) in available_memory(tmp_path)


def test_this_machine_says_what_it_has() -> None:
    assert dict(available_memory())["MemAvailable"] > 0
