"""What `mcpd.shm` offers, what importing it costs, and where it looks for the daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import mcpd.shm
from mcpd.shm import errors
from mcpd.shm.errors import InvalidRequest, McpdError, StreamClosed, from_wire
from mcpd.shm.paths import default_models, default_socket, resolve_socket


def modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_importing_the_library_loads_nothing_heavy() -> None:
    loaded = modules_after("import mcpd.shm")
    assert not loaded & {"numpy", "posix_ipc", "asyncio", "msgspec", "av"}


def test_connecting_loads_no_numpy() -> None:
    loaded = modules_after("from mcpd.shm import connect")
    assert not loaded & {"numpy", "posix_ipc", "asyncio", "av"}


def test_every_public_name_is_there() -> None:
    for name in mcpd.shm.__all__:
        assert getattr(mcpd.shm, name) is not None
        assert name in dir(mcpd.shm)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mcpd.shm.nothing


def test_every_error_of_the_tree_is_public() -> None:
    tree = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, McpdError)
    }
    assert tree <= set(mcpd.shm.__all__)


def test_every_error_comes_back_from_its_code() -> None:
    for name in mcpd.shm.__all__:
        kind = getattr(mcpd.shm, name)
        if isinstance(kind, type) and issubclass(kind, McpdError) and kind is not McpdError:
            error = from_wire(kind.code, "what", "do this")
            assert type(error) is kind
            assert str(error) == "what. do this"
    assert type(from_wire("from_the_future", "what")) is McpdError
    assert isinstance(from_wire("ended", "x"), StreamClosed)


def test_every_module_has_a_docstring_and_can_be_imported() -> None:
    for path in Path(mcpd.shm.__file__ or "").parent.glob("*.py"):
        name = "mcpd.shm" if path.stem == "__init__" else f"mcpd.shm.{path.stem}"
        assert import_module(name).__doc__, name


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MCPD_SOCKET": "/a/b", "XDG_RUNTIME_DIR": "/run/user/7"}, "/a/b"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/mcpd/mcpd.sock"),
        ({"XDG_RUNTIME_DIR": "", "MCPD_SOCKET": ""}, ""),
    ],
)
def test_socket_is_looked_for_in_order(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("MCPD_SOCKET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    mine = "/run/mcpd/mcpd.sock" if os.getuid() == 0 else f"/tmp/mcpd-{os.getuid()}/mcpd.sock"
    assert default_socket() == (expected or mine)
    monkeypatch.setattr(os, "getuid", lambda: 12)
    assert default_socket() == (expected or "/tmp/mcpd-12/mcpd.sock")


def test_socket_path_is_checked_in_bytes() -> None:
    assert resolve_socket("/" + "x" * 106) == "/" + "x" * 106
    with pytest.raises(InvalidRequest, match="has 108 bytes, the limit is 107"):
        resolve_socket("/" + "x" * 107)
    with pytest.raises(InvalidRequest, match="has 121 bytes"):
        resolve_socket("/" + "\u00e9" * 60)
    for path in ("", "a\0b"):
        with pytest.raises(InvalidRequest, match="is not a path"):
            resolve_socket(path)


def test_models_are_looked_for_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCPD_MODELS", "/m")
    assert default_models() == Path("/m")
    monkeypatch.delenv("MCPD_MODELS")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_models() == Path("/data/mcpd/models")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_models() == Path("/home/me/.local/share/mcpd/models")
