"""Only regular files below the folders that the user allows are looked at."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mcpd.mcp_adapter.roots import SETTING, allowed_roots, resolve_allowed
from mcpd.shm.errors import InvalidRequest, NotFound, NotPermitted


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("Videos", "Pictures", "Documents", ".ssh"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file.mp4").write_bytes(b"x")
    return tmp_path


def env(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), **more}


def test_videos_and_pictures_are_allowed_by_default(home: Path) -> None:
    for name in ("Videos", "Pictures"):
        path = home / name / "file.mp4"
        assert resolve_allowed(str(path), env(home)) == path


@pytest.mark.parametrize("name", ["Documents", ".ssh", "Videos/../.ssh", "Videos-private"])
def test_other_folders_are_refused_and_the_setting_is_named(home: Path, name: str) -> None:
    with pytest.raises(NotPermitted) as caught:
        resolve_allowed(f"{home}/{name}/file.mp4", env(home))
    assert str(home / "Videos") in caught.value.message
    assert SETTING in caught.value.hint


def test_desktop_settings_name_the_folders(home: Path) -> None:
    (home / ".config").mkdir()
    (home / ".config/user-dirs.dirs").write_text(
        '# written by a desktop\nXDG_VIDEOS_DIR="$HOME/Documents"\nXDG_PICTURES_DIR="/srv/bilder"\n'
    )
    assert allowed_roots(env(home)) == [home / "Documents", Path("/srv/bilder")]


def test_desktop_setting_that_means_home_allows_nothing(home: Path) -> None:
    (home / ".config").mkdir()
    (home / ".config/user-dirs.dirs").write_text('XDG_VIDEOS_DIR="$HOME/"\n')
    assert allowed_roots(env(home)) == [home / "Pictures"]


def test_setting_replaces_the_default(home: Path) -> None:
    roots = env(home, **{SETTING: f"{home}/Documents:{home}/Pictures"})
    assert resolve_allowed(f"{home}/Documents/file.mp4", roots)
    with pytest.raises(NotPermitted):
        resolve_allowed(f"{home}/Videos/file.mp4", roots)


def test_empty_setting_allows_nothing(home: Path) -> None:
    with pytest.raises(NotPermitted, match=r"may be read \(none\)"):
        resolve_allowed(f"{home}/Videos/file.mp4", env(home, **{SETTING: ""}))


def test_setting_with_a_relative_folder_is_refused(home: Path) -> None:
    with pytest.raises(InvalidRequest, match="'Videos', which is not an absolute path"):
        resolve_allowed(f"{home}/Videos/file.mp4", env(home, **{SETTING: "Videos"}))


def test_link_out_of_a_root_is_refused(home: Path) -> None:
    (home / "Videos/link.mp4").symlink_to(home / ".ssh/file.mp4")
    with pytest.raises(NotPermitted):
        resolve_allowed(f"{home}/Videos/link.mp4", env(home))


def test_link_inside_a_root_gives_the_file_it_means(home: Path) -> None:
    (home / "Videos/link.mp4").symlink_to(home / "Pictures/file.mp4")
    assert resolve_allowed(f"{home}/Videos/link.mp4", env(home)) == home / "Pictures/file.mp4"


def test_root_may_itself_be_a_link(home: Path) -> None:
    (home / "Alias").symlink_to(home / "Documents")
    roots = env(home, **{SETTING: f"{home}/Alias"})
    assert resolve_allowed(f"{home}/Alias/file.mp4", roots) == home / "Documents/file.mp4"


def test_outside_a_root_nobody_learns_whether_a_file_exists(home: Path) -> None:
    errors = set()
    for name in ("file.mp4", "none.mp4"):
        with pytest.raises(NotPermitted) as caught:
            resolve_allowed(f"{home}/.ssh/{name}", env(home))
        errors.add(str(caught.value).replace(name, ""))
    assert len(errors) == 1


@pytest.mark.parametrize("path", ["clip.mp4", "~/Videos/file.mp4", "file:///x", "/x\0y"])
def test_path_that_is_not_absolute_is_refused(home: Path, path: str) -> None:
    with pytest.raises(InvalidRequest, match="not an absolute path"):
        resolve_allowed(path, env(home))


def test_missing_file_is_not_found(home: Path) -> None:
    with pytest.raises(NotFound, match="there is no file"):
        resolve_allowed(f"{home}/Videos/none.mp4", env(home))


def test_loop_of_links_is_an_error(home: Path) -> None:
    (home / "Videos/loop").symlink_to(home / "Videos/loop")
    with pytest.raises((InvalidRequest, NotPermitted, NotFound)):
        resolve_allowed(f"{home}/Videos/loop", env(home))


def test_folder_pipe_and_socket_are_no_files(home: Path) -> None:
    os.mkfifo(home / "Videos/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "Videos/socket"))
        for name, kind in (("", "folder"), ("pipe", "pipe"), ("socket", "socket")):
            with pytest.raises(InvalidRequest, match=kind):
                resolve_allowed(f"{home}/Videos/{name}", env(home))
