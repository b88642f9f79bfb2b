"""The process's side of labelled steps: loads the test build and wraps functions as they come.

To be called before anything of mcpd is imported. It imports nothing that the product does not.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from tests.support.step_labels import LABELS, Label

_library: list[ctypes.CDLL] = []


def begin(page: str = "") -> None:
    """From now on this process has steps, counted in that page of the test's folder."""
    core = os.environ["MCPD_STEPS_CORE"]
    _library.append(ctypes.CDLL(core))
    _library[0].mcpd_test_step.argtypes = [ctypes.c_char_p]
    sys.meta_path.insert(0, _Finder(core))
    if page:
        use_page(os.path.join(os.environ["MCPD_STEPS_PAGES"], page))


def use_page(path: str) -> None:
    """Counts in that page, if there is one."""
    _library[0].mcpd_test_steps_open(path.encode())


def page_name(argv: Sequence[str]) -> str:
    """Of a process of the product, by its command line."""
    for module in ("worker", "source", "reaper"):
        if f"mcpd.daemon.{module}" in argv:
            return f"worker-{argv[argv.index('--model') + 1]}" if module == "worker" else module
    return "daemon" if "mcpd.daemon" in argv else ""


def step(label: bytes) -> None:
    """Came to a labelled step."""
    _library[0].mcpd_test_step(label)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the C core in the test build, and modules with functions to be wrapped."""

    def __init__(self, core: str) -> None:
        self._core = core
        self._modules = {label.module for label in LABELS}
        self._finding = False

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "mcpd.native._core":
            return importlib.util.spec_from_file_location(name, self._core)
        if self._finding or name not in self._modules:
            return None
        self._finding = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                for label in LABELS:
                    if label.module == name:
                        wrap(module, label)

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010
        return spec


def wrap(module: ModuleType, label: Label) -> None:
    """Has a function come to the label before or after what it does."""
    owner: Any = module
    *parents, name = label.function.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    kind = inspect.getattr_static(owner, name)
    function: Callable[..., Any] = getattr(owner, name)
    text = label.name.encode()

    @functools.wraps(function)
    async def asynchronous(*arguments: Any, **named: Any) -> Any:
        if label.before:
            step(text)
        result = await function(*arguments, **named)
        if not label.before:
            step(text)
        return result

    @functools.wraps(function)
    def synchronous(*arguments: Any, **named: Any) -> Any:
        if label.before:
            step(text)
        result = function(*arguments, **named)
        if not label.before:
            step(text)
        return result

    wrapped: Any = asynchronous if inspect.iscoroutinefunction(function) else synchronous
    setattr(owner, name, staticmethod(wrapped) if isinstance(kind, staticmethod) else wrapped)
