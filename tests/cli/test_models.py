"""models: what the repository holds, with a daemon and without."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.command import run_mcpd
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.models import write_repository, write_trivial


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Both test models and a folder that is none."""
    folder = write_repository(tmp_path / "models")
    (folder / "broken").mkdir()
    return folder


def test_list_reads_the_folder_without_a_daemon(repository: Path) -> None:
    ran = run_mcpd("models", "list", "--json", env={"MCPD_MODELS": str(repository)})
    assert (ran.status, ran.err) == (0, "")
    states = {model["name"]: model["state"] for model in ran.document["models"]}
    assert states == {"tiny-image": "stopped", "trivial": "stopped", "broken": "broken"}
    assert "ssdlite-coco" in {package["name"] for package in ran.document["packages"]}


def test_list_has_the_same_fields_with_a_daemon_and_without(repository: Path) -> None:
    with RunningDaemon(repository.parent, repository) as running:
        told = run_mcpd("models", "list", "--json", socket=running.socket).document["models"]
    read = run_mcpd("models", "list", "--json", "--repository", str(repository)).document["models"]
    by_name = {model["name"]: model for model in read}
    assert {model["name"] for model in told} == by_name.keys()
    for model in told:
        assert by_name[model["name"]].keys() == model.keys()
        assert by_name[model["name"]] == model


def test_list_shows_what_is_wrong_with_a_model_and_what_can_be_fetched(repository: Path) -> None:
    ran = run_mcpd("models", "list", "--repository", str(repository))
    assert ran.status == 0
    assert "model.toml is missing" in ran.out
    assert "ssdlite-coco" in ran.out


def test_list_of_an_empty_repository_says_how_to_fill_it(tmp_path: Path) -> None:
    ran = run_mcpd("models", "list", "--repository", str(tmp_path))
    assert ran.status == 0
    assert "mcpd models fetch" in ran.out


def test_show_tells_inputs_and_classes(repository: Path) -> None:
    words = ("models", "show", "tiny-image", "--repository", str(repository))
    ran = run_mcpd(*words, "--json")
    assert ran.status == 0
    assert ran.document["inputs"] == {"images": {"kind": "image"}}
    assert ran.document["label_names"] == ["red", "green", "blue"]
    assert "images" in run_mcpd(*words).out


def test_show_of_an_unknown_model_names_the_known_ones(repository: Path) -> None:
    ran = run_mcpd("models", "show", "nothing", "--repository", str(repository))
    assert ran.status == 1
    assert "tiny-image, trivial" in ran.err


def test_fetch_of_an_unknown_package_is_an_error_that_names_the_known_ones(tmp_path: Path) -> None:
    words = ("models", "fetch", "nothing", "--repository", str(tmp_path))
    ran = run_mcpd(*words)
    assert ran.status == 1
    assert ran.err.startswith("mcpd: error: no model package 'nothing'")
    assert "ssdlite-coco" in ran.err
    assert run_mcpd(*words, "--json").document["error"]["code"] == "not_found"


def test_fetch_of_what_is_there_changes_nothing(tmp_path: Path) -> None:
    """What is fetched for the first time needs the network: tests/daemon has that."""
    folder = write_trivial(tmp_path, "ssdlite-coco").parent
    ran = run_mcpd("models", "fetch", "ssdlite-coco", "--repository", str(tmp_path), "--json")
    assert (ran.status, ran.err) == (0, "")
    assert ran.document == {"model": "ssdlite-coco", "path": str(folder), "loaded": False}


def test_fetch_with_a_daemon_goes_to_its_repository_and_is_loaded(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    with RunningDaemon(tmp_path, models) as running:
        write_trivial(models, "ssdlite-coco")
        ran = run_mcpd("models", "fetch", "ssdlite-coco", "--json", socket=running.socket)
        assert (ran.status, ran.err) == (0, "")
        assert ran.document["path"] == str(models / "ssdlite-coco")
        assert ran.document["loaded"] is True

        def ready() -> bool:
            words = ("models", "show", "ssdlite-coco", "--json")
            return bool(run_mcpd(*words, socket=running.socket).document["state"] == "ready")

        wait_until(ready, 60, "the model is loaded")


def test_load_reads_the_repository_again(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_trivial(models, "first")
    with RunningDaemon(tmp_path, models) as running:
        shutil.copytree(models / "first", models / "second")
        ran = run_mcpd("models", "load", "--json", socket=running.socket)
        assert ran.status == 0
        assert sorted(ran.document["models"]) == ["first", "second"]
        assert ran.document["broken"] == {}


def test_load_tells_what_is_wrong_with_a_model(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_trivial(models, "first")
    with RunningDaemon(tmp_path, models) as running:
        (models / "second").mkdir()
        ran = run_mcpd("models", "load", socket=running.socket)
        assert ran.out.startswith("models: first\n")
        assert "model.toml is missing" in ran.out


def test_load_without_a_daemon_is_exit_status_3() -> None:
    assert run_mcpd("models", "load").status == 3
