"""The checkers of the fault tests, each with a fault planted that it must see."""

from __future__ import annotations

import os

import pytest

from mcpd.shm import connect
from tests.faults.test_kills import held_of
from tests.support.bystander import Bystander
from tests.support.daemon import RunningDaemon


def test_bystander_notices_a_missing_frame(bare_daemon: RunningDaemon) -> None:
    bystander = Bystander(bare_daemon.socket)
    try:
        bystander.check()
        bystander.received += 1
        with pytest.raises(AssertionError, match="out of order"):
            bystander.check()
    finally:
        bystander.close()


def test_bystander_notices_that_its_daemon_is_gone(bare_daemon: RunningDaemon) -> None:
    bystander = Bystander(bare_daemon.socket)
    try:
        bystander.check()
        bare_daemon.stop()
        with pytest.raises(AssertionError, match="noticed"):
            bystander.check()
    finally:
        bystander.close()


def test_what_a_live_process_holds_is_seen(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        client.create_stream("cam0", slot_nbytes=64)
        left = held_of(client, bare_daemon, os.getpid(), "cam0")
        assert any(entry.startswith("lease") for entry in left)
        assert any(entry.startswith("session") for entry in left)
        assert any(entry.startswith("stream") for entry in left)
        if os.geteuid() == 0:
            assert any("mcpd:wctl:cam0" in entry for entry in left)
            assert any("memfd:mcpd:payload:cam0" in entry for entry in left)
