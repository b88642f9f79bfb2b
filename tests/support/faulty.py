"""Daemons whose workers fail as frames and model folders say; faulty_worker/ makes them."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.daemon import RunningDaemon
from tests.support.models import write_trivial

HERE = Path(__file__).parent


def faulty_daemon(
    folder: Path, models: Path, *arguments: str, load: str = "none", serve_s: float = 30.0
) -> RunningDaemon:
    """A daemon whose workers do as they are told by the frames that they get.

    Args:
        serve_s: How long a worker may take to begin on a stream.
    """
    paths = (HERE / "faulty_worker", HERE.parents[1])
    return RunningDaemon(
        folder,
        models,
        env={
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "MCPD_TEST_SERVE_S": str(serve_s),
        },
        load=load,
        arguments=arguments,
    )


def write_model(models: Path, name: str = "trivial", run: str = "", fault: str = "") -> Path:
    """The trivial model, with keys for [run] and a fault when it is loaded; returns its folder."""
    write_trivial(models, name)
    folder = models / name
    if run:
        with open(folder / "model.toml", "a") as file:
            file.write(f"\n[run]\n{run}\n")
    if fault:
        (folder / "fault").write_text(fault)
    return folder
