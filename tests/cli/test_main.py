"""The command line itself: what is loaded when, exit statuses, and how errors are told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mcpd.cli.group import COMMANDS, commands
from tests.cli.command import MCPD, environment, run_mcpd

HEAVY = {"av", "mcp", "msgspec", "numpy", "onnxruntime", "psutil", "rich"}


def modules_after(code: str) -> set[str]:
    """Top-level and mcpd.* modules loaded when an interpreter has run `code`."""
    show = "import sys; print(*(n for n in sys.modules if '.' not in n or n.startswith('mcpd')))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}\n{show}"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_lists_every_command_and_loads_none() -> None:
    loaded = modules_after("from mcpd.cli.main import main\nassert main(['--help']) == 0")
    assert not loaded & HEAVY
    assert not loaded & {f"mcpd.cli.{name}" for name in COMMANDS}
    shown = run_mcpd("--help")
    assert shown.status == 0
    assert all(f"  {name} " in shown.out for name in COMMANDS)


def test_entry_loads_not_even_click() -> None:
    loaded = modules_after("import mcpd.cli.main")
    assert "click" not in loaded
    assert not loaded & HEAVY


def test_first_line_of_each_help_is_the_one_in_the_table() -> None:
    with click.Context(commands) as context:
        for name, line in COMMANDS.items():
            command = commands.get_command(context, name)
            assert command is not None
            first = command.get_short_help_str(limit=200)  # some releases of click drop the stop
            assert first.removesuffix(".") == line.removesuffix("."), name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_socket_and_an_example(name: str) -> None:
    shown = run_mcpd(name, "--help")
    assert shown.status == 0
    assert "Example" in shown.out
    if name == "models":
        shown = run_mcpd(name, "list", "--help")
    assert "--json" in shown.out
    # The demo has a daemon of its own.
    assert ("--socket" in shown.out) == (name != "demo")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["push"], ["stop", "--timeout", "-1"], ["status", "extra"], []]
)
def test_wrong_usage_is_exit_status_2(arguments: list[str]) -> None:
    ran = run_mcpd(*arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert ran.err


def test_wrong_usage_with_json_is_a_document() -> None:
    ran = run_mcpd("stop", "--nonsense", "--json")
    assert ran.status == 2
    assert ran.document["error"]["code"] == "usage"
    assert "--nonsense" in ran.document["error"]["message"]
    assert ran.err == ""


@pytest.mark.parametrize("arguments", [["status"], ["stop"], ["watch", "cam0"]])
def test_no_daemon_is_exit_status_3_and_says_how_to_start_one(arguments: list[str]) -> None:
    ran = run_mcpd(*arguments)
    assert ran.status == 3
    assert ran.out == ""
    assert ran.err.startswith("mcpd: error: ")
    assert "\nhint: " in ran.err
    assert "mcpd start" in ran.err


def test_no_daemon_with_json_is_a_document() -> None:
    ran = run_mcpd("status", "--json")
    assert ran.status == 3
    assert ran.document["error"]["code"] == "unavailable"
    assert "mcpd start" in ran.document["error"]["hint"]
    assert ran.err == ""


@pytest.mark.parametrize("before", [True, False])
def test_socket_stands_before_or_after_the_command(before: bool, tmp_path: Path) -> None:
    socket = str(tmp_path / "other.sock")
    words = ["--socket", socket, "status"] if before else ["status", "--socket", socket]
    ran = run_mcpd(*words)
    assert ran.status == 3
    assert socket in ran.err


def test_version_is_the_distributions() -> None:
    assert run_mcpd("--version").out.startswith("mcpd 0.")


def test_reader_of_output_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*MCPD, "--help"],
            env=environment(),
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == b""


@pytest.mark.parametrize("arguments", [(), ("--socket", "/tmp/mcpd-no-such-daemon/other.sock")])
def test_mcp_becomes_the_adapter_and_ends_with_its_input(arguments: tuple[str, ...]) -> None:
    ran = run_mcpd("mcp", *arguments)  # standard input is at its end
    assert (ran.status, ran.out) == (0, "")


def test_error_in_json_is_one_line() -> None:
    ran = run_mcpd("status", "--json")
    assert ran.out.count("\n") == 1
    json.loads(ran.out)


@pytest.mark.parametrize("words", ["status", "status --json", "models list", "--help", "mcp"])
def test_closed_standard_output_is_no_crash(words: str, tmp_path: Path) -> None:
    ran = run_shell(f"{words} >&-", tmp_path)
    assert "Traceback" not in ran.stderr
    assert "Error" not in ran.stderr
    assert ran.returncode == {"status": 3, "mcp": 1}.get(words.split()[0], 0)


@pytest.mark.parametrize("words", ["status --json", "models list", "push x --stream y --json"])
def test_standard_output_that_takes_nothing_is_an_error(words: str, tmp_path: Path) -> None:
    ran = run_shell(f"{words} >/dev/full", tmp_path)
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert line.startswith("mcpd: error: ")
    assert "No space left on device" in line


def test_all_streams_closed_leave_no_descriptor_to_be_taken_for_one(tmp_path: Path) -> None:
    ran = run_shell("models list <&- >&- 2>&-", tmp_path)
    assert ran.returncode == 0


@pytest.mark.parametrize("value", ["nan", "inf", "1e30"])
def test_number_that_is_none_is_wrong_usage(value: str) -> None:
    for words in (("stop", "--timeout"), ("infer", "m", "f", "--timeout")):
        assert run_mcpd(*words, value).status == 2
    if value != "1e30":
        assert run_mcpd("infer", "m", "f", "--time", value).status == 2
        assert run_mcpd("watch", "s", "--model", "m", "--min-score", value).status == 2


def test_json_before_the_word_that_is_wrong_is_heeded_too() -> None:
    ran = run_mcpd("--json", "nosuch")
    assert (ran.status, ran.err) == (2, "")
    assert ran.document["error"]["code"] == "usage"


def run_shell(words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`mcpd WORDS`, with redirections as a shell does them; no models, no daemon."""
    return subprocess.run(
        ["sh", "-c", f'"$@" {words}', "sh", *MCPD],
        env=environment(extra={"MCPD_MODELS": str(folder)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
