"""Model repositories: folders of models, each with a model.toml that says how to run it.

    FOLDER/NAME/model.toml
    FOLDER/NAME/labels.txt            named by [decode] labels; one class name a line
    FOLDER/NAME/VERSION/model.onnx    VERSION is a number; the highest is served

The daemon and the workers read it with this module; it loads no engine and no numpy.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import Struct

from mcpd.daemon.models.model_toml import (
    ENGINE_FILES,
    DecodeConfig,
    InputConfig,
    RunConfig,
    read_model_toml,
)
from mcpd.shm.errors import ModelFailed, NotFound

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_VERSION = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


class ModelConfig(Struct, frozen=True):
    """One model of a repository, checked."""

    name: str
    path: Path
    engine: str
    versions: tuple[int, ...]
    """Those that have a model file, lowest first; at least one."""
    inputs: tuple[InputConfig, ...]
    decode: DecodeConfig
    run: RunConfig

    @property
    def newest(self) -> int:
        """The version that is served unless another is asked for."""
        return self.versions[-1]

    def version_path(self, version: int = 0) -> Path:
        """The folder of a version, 0 for the newest.

        Raises:
            NotFound: There is no such version.
        """
        wanted = version or self.newest
        if wanted not in self.versions:
            have = ", ".join(str(number) for number in self.versions)
            raise NotFound(f"model {self.name!r} has no version {version}", f"It has {have}")
        return self.path / str(wanted)


class Repository(Struct, frozen=True):
    """What a repository folder holds."""

    folder: Path
    models: dict[str, ModelConfig]
    broken: dict[str, ModelFailed]
    """Why the other folders are not models that can be served."""


def read_repository(folder: Path) -> Repository:
    """Reads every model of a repository; one that is broken does not hide the others.

    A folder that does not exist is an empty repository. Hidden entries and files are ignored.

    Raises:
        ModelFailed: The folder cannot be read.
    """
    models: dict[str, ModelConfig] = {}
    broken: dict[str, ModelFailed] = {}
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        paths = []
    except OSError as error:
        raise ModelFailed(f"model repository {folder} cannot be read: {error.strerror}") from error
    for path in paths:
        name = _as_text(path.name)
        try:
            if path.is_dir():
                models[name] = read_model(path)
        except ModelFailed as error:
            broken[name] = error
        except OSError as error:
            broken[name] = ModelFailed(f"model {name!r} cannot be read: {error.strerror}")
    return Repository(folder, models, broken)


def read_model(path: Path) -> ModelConfig:
    """Reads and checks one model's folder, `path`; its name is the folder's.

    Raises:
        ModelFailed: Lists every fault: file, key, value and what is allowed.
    """
    problems: list[str] = []
    if not _NAME.fullmatch(path.name):
        problems.append(
            f"folder name {_as_text(path.name)!r}: must be 1 to 63 letters, digits, '.', '_' or "
            "'-', starting with a letter or digit"
        )
    toml = read_model_toml(path, problems)
    engine: str = toml.engine
    versions: tuple[int, ...] = ()
    try:
        engine, versions = _find_versions(path, toml.engine, problems)
    except OSError as error:
        problems.append(f"its versions cannot be read: {error.filename}: {error.strerror}")
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        where = _as_text(str(path))
        raise ModelFailed(f"model {_as_text(path.name)!r} in {where} cannot be used:{listed}")
    return ModelConfig(path.name, path, engine, versions, toml.inputs, toml.decode, toml.run)


def _find_versions(path: Path, engine: str, problems: list[str]) -> tuple[str, tuple[int, ...]]:
    """The engine, by the newest version's file unless named, and the versions it can load."""
    folders = sorted(
        (child for child in path.iterdir() if child.is_dir() and _VERSION.fullmatch(child.name)),
        key=lambda child: int(child.name),
    )
    if not folders:
        problems.append("no version: there must be a folder with a number for a name, such as 1")
        return engine, ()
    files = {engine: ENGINE_FILES[engine]} if engine else ENGINE_FILES
    found = [
        (name, child) for child in folders for name in files if (child / files[name]).is_file()
    ]
    newest = folders[-1]
    if not found or found[-1][1] != newest:
        problems.append(f"{newest.name}/: no model file; must have {' or '.join(files.values())}")
        return engine, ()
    engine = found[-1][0]
    return engine, tuple(int(child.name) for name, child in found if name == engine)


def _as_text(name: str) -> str:
    """A file's name as text that can be sent and printed: bytes that are not UTF-8 as \\xff."""
    return os.fsencode(name).decode(errors="backslashreplace")
