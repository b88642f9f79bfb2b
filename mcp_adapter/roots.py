"""Which files the adapter may have a model look at: those below the folders the user allows.

`MCPD_MCP_ROOTS` lists the folders, absolute and separated by colons; an empty value allows none.
Unset, they are the user's Videos and Pictures folders, found as desktops find them: the entries
XDG_VIDEOS_DIR and XDG_PICTURES_DIR of `$XDG_CONFIG_HOME/user-dirs.dirs`, else `~/Videos` and
`~/Pictures`. The home folder itself is never allowed by default: it holds keys and mail.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from mcpd.shm.errors import InvalidRequest, NotFound, NotPermitted

SETTING = "MCPD_MCP_ROOTS"
_USER_DIR = re.compile(r'^XDG_(VIDEOS|PICTURES)_DIR="(\$HOME)?(/[^"]*)"\s*$', re.MULTILINE)


def allowed_roots(env: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders whose files may be looked at, with symbolic links resolved.

    Raises:
        InvalidRequest: An entry of MCPD_MCP_ROOTS is not an absolute path.
    """
    setting = env.get(SETTING)
    if setting is None:
        return [folder.resolve() for folder in _media_folders(env)]
    entries = [entry for entry in setting.split(":") if entry]
    for entry in entries:
        if not entry.startswith("/"):
            raise InvalidRequest(
                f"the setting {SETTING} lists {entry!r}, which is not an absolute path",
                f"Set {SETTING} to absolute folders separated by colons and restart the adapter",
            )
    return [Path(entry).resolve() for entry in entries]


def resolve_allowed(path: str, env: Mapping[str, str] = os.environ) -> Path:
    """The regular file that `path` names, symbolic links resolved, if it lies below a root.

    A file outside the roots gives the same error whether it exists or not.

    Raises:
        InvalidRequest: Not an absolute path, or not a regular file.
        NotPermitted: Not below a root; the hint names the setting that would allow it.
        NotFound: No such file.
    """
    if not path.startswith("/") or "\0" in path:
        raise InvalidRequest(
            f"path is {path!r}, which is not an absolute path",
            "Give the whole path from /, as in /home/user/Videos/clip.mp4",
        )
    try:
        resolved = Path(path).resolve()
    except (OSError, RuntimeError) as error:
        raise InvalidRequest(
            f"path {path!r} cannot be resolved: {error}", "Give another"
        ) from error
    roots = allowed_roots(env)
    if not any(resolved.is_relative_to(root) for root in roots):
        raise NotPermitted(
            f"{path} lies outside the folders that may be read "
            f"({', '.join(map(str, roots)) or 'none'})",
            f"Only the user can allow it: add its folder to the environment variable {SETTING} "
            "(absolute folders, separated by colons) in the host's configuration of this server",
        )
    try:
        mode = resolved.stat().st_mode
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", "Check the spelling of the path") from error
    except OSError as error:
        raise NotPermitted(f"{path} cannot be read: {error.strerror}", "Give another") from error
    if not stat.S_ISREG(mode):
        raise InvalidRequest(
            f"{path} is a {_kind(mode)}, not a regular file", "Give an image or a video file"
        )
    return resolved


def _media_folders(env: Mapping[str, str]) -> list[Path]:
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    folders = {"VIDEOS": home / "Videos", "PICTURES": home / "Pictures"}
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "user-dirs.dirs"
    try:
        listed = config.read_text(encoding="utf-8", errors="replace")
    except OSError:
        listed = ""
    for name, below_home, folder in _USER_DIR.findall(listed):
        found = Path(f"{home}{folder}" if below_home else folder)
        # Desktops write the home folder itself for a folder that the user has done away with.
        if found.resolve() == home.resolve():
            del folders[name]
        else:
            folders[name] = found
    return list(folders.values())


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "folder"
    return "device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "pipe or socket"
