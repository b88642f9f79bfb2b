"""Keeps the layers of docs/architecture.md: who may import whom, what may be heavy, and where.

Each rule is a function over the tree's sources, and has a test that plants a violation.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TOP_LEVEL = {
    *("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", ".ci", ".gitignore"),
    *("daemon", "shm", "mcp_adapter", "cli", "native", "bench", "docs", "tests"),
}
LOWER: dict[str, set[str]] = {
    "native": set(),
    "shm": {"native"},
    "daemon": {"native", "shm"},
    "mcp_adapter": {"native", "shm"},
    "cli": {"native", "shm"},
}
"""For each folder the others it may import."""

OWNERS: dict[str, tuple[str, ...]] = {
    "av": ("shm/video.py", "daemon/source/", "cli/"),
    "click": ("cli/", "daemon/source/progress.py"),
    "cupy": ("daemon/engines/", "daemon/worker/"),
    "mcp": ("mcp_adapter/",),
    "mcp_types": ("mcp_adapter/",),
    "onnx": ("daemon/models/",),
    "onnxruntime": ("daemon/engines/",),
    "PIL": ("cli/demo/",),
    "posix_ipc": ("shm/", "daemon/"),
    "rich": ("cli/", "daemon/source/progress.py"),
    "torch": ("daemon/engines/",),
}
"""Heavy or special packages, and the only files that may import them, at the top or inside."""

INSIDE_ONLY = {"av", "cupy", "onnx", "onnxruntime", "PIL", "torch"}
"""Packages from an extra: never imported at the top of a module."""

PIXELS = {"numpy", "av", "torch", "onnx", "onnxruntime", "cupy", "PIL"}
NEVER_LOADED: dict[str, set[str]] = {
    "mcpd.shm": PIXELS | {"mcp", "rich", "click"},
    "mcpd.shm.client": PIXELS | {"mcp", "rich", "click"},
    "mcpd.daemon.__main__": PIXELS | {"mcp", "rich", "click"},
    "mcpd.daemon.reaper": PIXELS | {"mcp", "rich", "click", "msgspec", "psutil"},
    "mcpd.daemon.models.repository": PIXELS | {"mcp", "rich", "click"},
    "mcpd.mcp_adapter.__main__": PIXELS | {"mcp", "anyio", "rich", "click", "msgspec"},
    "mcpd.mcp_adapter.manifest": PIXELS | {"mcp", "anyio", "msgspec"},
    "mcpd.mcp_adapter.server": PIXELS | {"rich", "click"},
    "mcpd.cli.main": PIXELS | {"mcp"},
}
"""What importing a module must not load, itself or through what it imports."""

MAX_LINES = 400
REASON = "400 lines"
"""Words that the docstring or first comment of a longer file holds, with the reason."""

Sources = Mapping[str, str]


class Import(NamedTuple):
    file: str
    line: int
    module: str
    """Absolute; for `from a import b`, a.b."""
    inside: bool
    """In a function, so not run when the module is imported."""
    relative: bool


def tree_sources(*suffixes: str) -> dict[str, str]:
    """The text of the tree's files by path, of those git knows or would add."""
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in names
        if name.endswith(suffixes)
        and (ROOT / name).is_file()
        and not name.startswith("tests/typing")
    }


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def ours(sources: Sources) -> dict[str, str]:
    return {name: text for name, text in sources.items() if name.split("/")[0] in LOWER}


def imports(sources: Sources) -> Iterator[Import]:
    """Every import statement and every import_module of a literal name, type checking apart."""
    for file, text in sources.items():
        if file.endswith(".py"):
            yield from _imports_of(file, ast.parse(text, file), inside=False)


def _imports_of(file: str, node: ast.AST, *, inside: bool) -> Iterator[Import]:
    match node:
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            for other in node.orelse:
                yield from _imports_of(file, other, inside=inside)
            return
        case ast.Import():
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, inside, False)
        case ast.ImportFrom():
            for alias in node.names:
                module = f"{node.module}.{alias.name}" if node.module else alias.name
                yield Import(file, node.lineno, module, inside, node.level > 0)
        case ast.Call(
            func=ast.Name(name) | ast.Attribute(attr=name), args=[ast.Constant(str(to)), *_]
        ):
            if name in {"import_module", "__import__"}:
                yield Import(file, node.lineno, to, inside, to.startswith("."))
    inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _imports_of(file, child, inside=inside)


def layer_violations(sources: Sources) -> list[str]:
    found = []
    for item in imports(ours(sources)):
        folder, parts = item.file.split("/")[0], item.module.split(".")
        if parts[0] != "mcpd" or len(parts) < 2:
            continue
        if parts[1] != folder and parts[1] not in LOWER[folder]:
            found.append(f"{item.file}:{item.line} imports {item.module}")
    return found


def relative_imports(sources: Sources) -> list[str]:
    return [f"{item.file}:{item.line}" for item in imports(sources) if item.relative]


def owner_violations(sources: Sources) -> list[str]:
    found = []
    for item in imports(ours(sources)):
        package = item.module.split(".")[0]
        if package in OWNERS and not item.file.startswith(OWNERS[package]):
            found.append(f"{item.file}:{item.line} imports {package}")
        elif package in INSIDE_ONLY and not item.inside:
            found.append(f"{item.file}:{item.line} imports {package} at its top")
    return found


def engine_violations(sources: Sources) -> list[str]:
    """Imports of an engine or decoder module from outside its folder and the worker."""
    allowed = ("daemon/engines/", "daemon/decoders/", "daemon/worker/")
    return [
        f"{item.file}:{item.line} imports {item.module}"
        for item in imports(ours(sources))
        if item.module.startswith(("mcpd.daemon.engines", "mcpd.daemon.decoders"))
        and not item.file.startswith(allowed)
    ]


def loaded_by(sources: Sources, module: str) -> dict[str, str]:
    """What importing `module` loads, each with the chain of modules that leads there."""
    by_module = {_module_name(file): file for file in ours(sources) if file.endswith(".py")}
    tops: dict[str, set[str]] = {name: set() for name in by_module}
    for item in imports(ours(sources)):
        if not item.inside:
            tops[_module_name(item.file)].add(item.module)
    chains = {module: module}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        needed = tops.get(name, set()) | {name.rpartition(".")[0]}
        for target in needed:
            # `from a import b` may name a module or a thing in one.
            found = target if target in by_module else target.rpartition(".")[0]
            if not target.startswith("mcpd."):
                found = target.split(".")[0]
            if found and found not in chains:
                chains[found] = f"{chains[name]} -> {found}"
                waiting.append(found)
    return chains


def _module_name(file: str) -> str:
    return "mcpd." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def load_violations(sources: Sources, rules: Mapping[str, set[str]] = NEVER_LOADED) -> list[str]:
    found = []
    for module, forbidden in rules.items():
        chains = loaded_by(sources, module)
        found += [chains[package] for package in sorted(forbidden & chains.keys())]
    return found


def long_files(sources: Sources) -> list[str]:
    """Files above MAX_LINES whose first lines do not say why."""
    return [
        f"{file} has {lines} lines"
        for file, text in sources.items()
        if (lines := text.count("\n")) > MAX_LINES and REASON not in text[:2000]
    ]


def strange_top_level(files: list[str]) -> set[str]:
    return {name.split("/")[0] for name in files} ^ TOP_LEVEL


def modules_loaded(*code: str) -> set[str]:
    """The top-level packages in sys.modules of a fresh process that ran `code`."""
    lines = [*code, "import sys; print(*{name.partition('.')[0] for name in sys.modules})"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_folders_import_only_the_layers_below_them() -> None:
    assert layer_violations(tree_sources(".py")) == []


def test_a_planted_import_across_layers_is_caught() -> None:
    planted = {
        "cli/bad.py": "def f():\n    from mcpd.daemon.config import Config\n",
        "shm/bad.py": "from mcpd import cli\n",
        "native/bad.py": "import importlib\nimportlib.import_module('mcpd.shm')\n",
        "daemon/good.py": "from mcpd.shm import errors\nimport mcpd.native._core\n",
    }
    assert layer_violations(planted) == [
        "cli/bad.py:2 imports mcpd.daemon.config.Config",
        "shm/bad.py:1 imports mcpd.cli",
        "native/bad.py:2 imports mcpd.shm",
    ]


def test_no_import_is_relative() -> None:
    assert relative_imports(tree_sources(".py")) == []


def test_a_planted_relative_import_is_caught() -> None:
    assert relative_imports({"tests/bad.py": "from . import x\n"}) == ["tests/bad.py:1"]


def test_heavy_packages_are_imported_only_by_their_owners_and_inside_functions() -> None:
    assert owner_violations(tree_sources(".py")) == []


def test_a_planted_heavy_import_is_caught() -> None:
    planted = {
        "daemon/bad.py": "def f():\n    import torch\n",
        "daemon/engines/bad.py": "import onnxruntime\n",
        "daemon/engines/good.py": "def f():\n    import onnxruntime\n",
        "daemon/engines/typed.py": "if TYPE_CHECKING:\n    import onnxruntime\n",
    }
    assert owner_violations(planted) == [
        "daemon/bad.py:2 imports torch",
        "daemon/engines/bad.py:1 imports onnxruntime at its top",
    ]


def test_only_the_worker_loads_engines_and_decoders() -> None:
    assert engine_violations(tree_sources(".py")) == []


def test_a_planted_engine_import_is_caught() -> None:
    planted = {"daemon/server.py": "def f():\n    from mcpd.daemon.engines import open_engine\n"}
    assert engine_violations(planted) == [
        "daemon/server.py:2 imports mcpd.daemon.engines.open_engine"
    ]


def test_no_process_loads_at_start_what_it_must_not() -> None:
    assert load_violations(tree_sources(".py")) == []


def test_a_planted_chain_to_a_heavy_package_is_caught() -> None:
    planted = {
        "daemon/__init__.py": "",
        "daemon/__main__.py": "from mcpd.shm.frame import Frame\n",
        "shm/__init__.py": "",
        "shm/frame.py": "import numpy as np\n",
    }
    assert load_violations(planted, {"mcpd.daemon.__main__": {"numpy"}}) == [
        "mcpd.daemon.__main__ -> mcpd.shm.frame -> numpy"
    ]


def test_every_module_named_in_a_rule_exists() -> None:
    known = {_module_name(file) for file in tree_sources(".py")}
    assert NEVER_LOADED.keys() - known == set()


def test_long_files_say_why() -> None:
    assert long_files(tree_sources(".py", ".c", ".h", ".md")) == []


def test_a_planted_long_file_is_caught() -> None:
    long = "x = 1\n" * (MAX_LINES + 1)
    planted = {"shm/bad.py": long, "shm/good.py": f'"""Over {REASON}: one table."""\n{long}'}
    assert long_files(planted) == ["shm/bad.py has 401 lines"]


def test_top_level_of_the_repository_is_the_agreed_one() -> None:
    assert strange_top_level(git("ls-files").splitlines()) == set()


def test_a_planted_top_level_file_is_caught() -> None:
    files = [*TOP_LEVEL, "setup.py"]
    assert strange_top_level(files) == {"setup.py"}
    assert strange_top_level(files[1:-1]) == {files[0]}


def test_importing_the_library_loads_no_numpy() -> None:
    assert modules_loaded("import mcpd.shm") & (PIXELS | {"msgspec"}) == set()


def test_importing_the_client_loads_no_numpy() -> None:
    assert modules_loaded("from mcpd.shm import connect, Client") & PIXELS == set()


def test_importing_all_of_the_daemon_process_loads_nothing_heavy() -> None:
    modules = [
        _module_name(file)
        for file in tree_sources(".py")
        if file.startswith("daemon/") and (file.count("/") == 1 or file.endswith("repository.py"))
    ]
    assert "mcpd.daemon.__main__" in modules
    loaded = modules_loaded(*(f"import {module}" for module in modules))
    assert loaded & (PIXELS | {"mcp", "rich", "click"}) == set()


def test_the_adapter_reads_its_manifest_without_the_sdk() -> None:
    loaded = modules_loaded("import mcpd.mcp_adapter.manifest, mcpd.mcp_adapter.__main__")
    assert loaded & (PIXELS | {"mcp", "pydantic", "anyio", "msgspec"}) == set()


def test_a_process_that_loads_numpy_is_caught() -> None:
    assert "numpy" in modules_loaded("import numpy")
