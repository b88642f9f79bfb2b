"""Which program makes a name in /dev/shm like this, and which process made this one, if it says so.

A pattern is as good as where it comes from, so each says: "program": we ran it and saw such names;
"source": read in its published source or documentation. docs/leaks.md has the table.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Program(NamedTuple):
    """A kind of name.

    Attributes:
        name: The program or library that makes it.
        pattern: Of the whole name; a group `pid` is the process that made it, as that saw itself.
        seen: "program" or "source".
        marker: What a living process of it maps or runs, as part of a path; "" if that is not
            known. It tells a maker from another process that got its number.
        keeper: Name of a process that removes what is left by itself, "" if there is none.
        note: What a person should know who finds it left.
        kept: Whether it is there for good, by design.
    """

    name: str
    pattern: re.Pattern[bytes]
    seen: str
    marker: str = ""
    keeper: str = ""
    note: str = ""
    kept: bool = False


class Recognised(NamedTuple):
    """What a name tells; pid 0 if it does not tell its maker."""

    program: Program
    pid: int


def _program(
    name: str,
    pattern: bytes,
    seen: str,
    marker: str = "",
    keeper: str = "",
    note: str = "",
    kept: bool = False,
) -> Program:
    return Program(name, re.compile(pattern, re.DOTALL), seen, marker, keeper, note, kept)


PROGRAMS: tuple[Program, ...] = (
    _program("mcpd", rb"mcpd\.\d+\.\d+\.\d+\.\d+", "program"),
    _program(
        *("PyTorch", rb"torch_(?P<pid>\d+)_\d+(_\d+)?", "program"),
        marker="torch",
        keeper="torch_shm_manag",
        note="torch_shm_manager removes it when its last user is gone; left if that was killed too",
    ),
    _program("joblib", rb"joblib_memmapping_folder_(?P<pid>\d+)_.*", "program", marker="python"),
    _program("loky", rb"sem\.loky-(?P<pid>\d+)-.*", "program", marker="python"),
    _program("Python multiprocessing", rb"pym-(?P<pid>\d+)-.*", "program", marker="python"),
    _program("Python multiprocessing", rb"sem\.mp-.*", "source"),
    _program(
        *("Python shared_memory", rb"(psm|wnsm)_[0-9a-f]{8}", "program"),
        note="vLLM, sglang and others use it too",
    ),
    _program(
        *("iceoryx2", rb"iox2_[0-9a-f]{40}_(?P<iox2>\d{20,39})(_\d+)?\.(data|connection)"),
        *("program",),
        marker="iceoryx2",
    ),
    _program("iceoryx2", rb"iox2_[0-9a-f]{40}_.*\.global_mgmt", "program", kept=True),
    _program(
        *("iceoryx2", rb"iox2_.*", "program"),
        note="iceoryx2 removes what dead nodes left when another node of it starts or closes",
    ),
    _program("iceoryx", rb"iceoryx_mgmt|iox1?_.*", "source"),
    _program("Ray", rb"plasma[A-Za-z0-9]{6}|ray_.*", "program", note="unlinked at once as a rule"),
    _program("NCCL", rb"nccl-[A-Za-z0-9]{6,}", "source"),
    _program("NVSHMEM", rb"nvshmem.*", "source"),
    _program("Triton Python backend", rb"triton_python_backend_shm_region_.*", "source"),
    _program("vLLM", rb"VLLM_OBJECT_STORAGE_SHM_BUFFER.*|vllm_.*", "source"),
    _program("sglang", rb"sglang_.*", "source"),
    _program("PostgreSQL", rb"PostgreSQL\.\d+", "source"),
    _program("Firefox", rb"org\.mozilla\.ipc\.(?P<pid>\d+)\.\d+", "source", marker="firefox"),
    _program("Firefox", rb"wayland\.mozilla\.ipc\.\d+", "source"),
    _program(
        *("Chrome", rb"\.?(org\.chromium\.|com\.google\.Chrome\.).*", "source"),
        marker="chrom",
    ),
    _program("PulseAudio", rb"pulse-shm-\d+", "source"),
    _program("Fast DDS", rb"(sem\.)?(fastrtps|fastdds|fast_datasharing)_.*", "source"),
    _program("Open MPI", rb"(vader_segment|sm_segment|osc_rdma|mca_fbtl)\..*", "source"),
    _program("UCX", rb"ucx_shm_posix_.*", "source"),
    _program("PSM", rb"psm[23]_.*", "source"),
    _program("Boost", rb"sem\.boost.*|boost_interprocess.*", "source"),
    _program("JACK", rb"jack-\d+-\d+|jack_.*|sem\.jack_.*", "source"),
    _program("Steam", rb"(u\d+-)?ValveIPC.*|u\d+-Shm_.*", "source"),
)
"""Looked through from the top: the first that matches counts."""


def recognise(name: bytes) -> Recognised | None:
    """The program that makes such names, and the process that made this one."""
    for program in PROGRAMS:
        matched = program.pattern.fullmatch(name)
        if matched is None:
            continue
        groups = matched.groupdict()
        if groups.get("iox2") is not None:
            # The number of a port: counter, pid, nanoseconds, seconds, of 32 bits each.
            return Recognised(program, int(groups["iox2"]) >> 64 & 0xFFFFFFFF)
        pid = groups.get("pid")
        return Recognised(program, int(pid) if pid and len(pid) < 10 else 0)
    return None
