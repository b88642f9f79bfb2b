"""Forks, parents and what the module shows to other processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from mcpd.native import _core
from tests.native.streams import PATIENCE_S


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=PATIENCE_S * 3,
        check=False,
    )


FORK = """
import errno, gc, os
from mcpd.native import _core
from tests.native.streams import TestStream, next_slot
with TestStream() as stream:
    reader = stream.attach()
    stream.publish(b"first")
    got, slot = next_slot(reader), stream.acquire()
    child = os.fork()
    if child == 0:
        for call in (reader.reader.next, stream.writer.acquire, slot.publish, stream.writer.stats,
                     reader.control.pins, stream.control.stats):
            try:
                call()
            except OSError as error:
                assert error.errno == errno.ECHILD, error
            else:
                raise AssertionError(call)
        for held in (got, slot):
            try:
                memoryview(held)
            except BufferError as error:
                assert "another process" in str(error)
            else:
                raise AssertionError(held)
        slot.abandon()
        got.close()
        del got, slot, held, call
        gc.collect()
        reader.reader.close()
        stream.writer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(memoryview(got)) == b"first"
    assert reader.control.pins() == [(1, got.index)]
    assert slot.publish() == 2
    got.close()
    assert next_slot(reader).seq == 2
"""


def test_a_forked_child_can_neither_use_nor_disturb_a_stream() -> None:
    done = run_python(FORK)
    assert done.returncode == 0, done.stderr


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", '''
import os, signal, sys
from mcpd.native import _core
_core.die_with_parent(signal.SIGKILL, int(sys.argv[1]))
print(os.getpid(), flush=True)
signal.pause()
''', str(__import__("os").getpid())])
child.wait()
"""


def test_a_child_dies_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            readable, _, _ = select.select([pidfd], [], [], PATIENCE_S)
            assert readable == [pidfd]
        finally:
            os.close(pidfd)


def test_a_child_whose_parent_is_gone_dies_at_once() -> None:
    code = "from mcpd.native import _core; _core.die_with_parent(9, 1 << 22); print('alive')"
    done = run_python(code)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_a_process_can_hide_itself_from_its_user() -> None:
    done = run_python(
        "import ctypes; from mcpd.native import _core; libc = ctypes.CDLL(None)\n"
        "for dumpable in (False, True):\n"
        "    _core.set_dumpable(dumpable); print(libc.prctl(3, 0, 0, 0, 0))"
    )
    assert done.stdout.split() == ["0", "1"], done.stderr


def test_the_module_exports_nothing_but_the_c_api() -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(_core.__file__)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = {line.split()[-1] for line in listing.splitlines()}
    assert "PyInit__core" in names
    assert {name for name in names if not name.startswith(("mcpd_", "PyInit__core"))} == set()
    assert not {"mcpd_sleep_begin", "mcpd_map_open", "mcpd_binding_oserror"} & names
