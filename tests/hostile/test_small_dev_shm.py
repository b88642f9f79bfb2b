"""As in a container: 8 MB of /dev/shm. memfd streams work; named segments say what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOUNT = "mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "
PROGRAM = """
import os, sys
from pathlib import Path
from mcpd.shm import connect
from mcpd.shm.errors import OutOfMemory
from tests.support.bystander import Bystander
from tests.support.daemon import RunningDaemon

MIB = 1 << 20
with RunningDaemon(Path(sys.argv[1])) as daemon, Bystander(daemon.socket) as bystander:
    with connect(daemon.socket) as client:
        def publish(name, memory, nbytes):
            with client.create_stream(name, slot_nbytes=nbytes, memory=memory) as stream:
                with client.open_stream(name) as reader:
                    with stream.acquire(30) as slot:
                        slot.buffer[:3] = b"mcp"
                    with reader.next(30):
                        pass
        publish("big", "memfd", 4 * MIB)
        publish("small", "posix", MIB // 4)
        for turn in range(3):
            try:
                publish("big", "posix", 4 * MIB)
            except OutOfMemory as error:
                assert "/dev/shm" in str(error), error
                print(error)
            else:
                raise AssertionError("32 MiB fitted into 8")
            bystander.check()
        assert not [name for name in os.listdir("/dev/shm") if name.startswith("mcpd.")]
        with client.create_stream("half", slot_nbytes=MIB // 2, memory="posix"):
            try:
                publish("other", "posix", MIB // 2 + 4096)
            except OutOfMemory as error:
                assert "/dev/shm" in str(error), error
            else:
                raise AssertionError("it fitted twice")
        publish("half", "posix", MIB // 2)
        Path("/dev/shm/somebody").write_bytes(bytes(6 * MIB))
        try:
            publish("third", "posix", MIB // 2)
        except OutOfMemory as error:
            assert "/dev/shm" in str(error), error
        publish("big", "memfd", 4 * MIB)
        bystander.check()
print("went on")
"""


def in_small_shm(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command in a mount namespace with 8 MB of /dev/shm; as a user in a user namespace."""
    command = ["unshare", "--user", "--map-root-user", "-m", "sh", "-c", MOUNT + '"$@"', "sh"]
    if subprocess.run(["id", "-u"], capture_output=True, text=True).stdout.strip() == "0":
        command = ["unshare", "-m", "sh", "-c", MOUNT + '"$@"', "sh"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=120
    )


def test_full_dev_shm_is_a_clear_error_and_memfds_go_on(tmp_path: Path) -> None:
    try:
        probe = in_small_shm(["true"])
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if probe.returncode != 0:
        pytest.skip(f"no mount namespace to be had: {probe.stderr.strip()}")
    program = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}"
    done = in_small_shm([sys.executable, "-P", "-c", program, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    assert "went on" in done.stdout
