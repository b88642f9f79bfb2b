"""Model repositories: what is read, and how faults in them are told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcpd.daemon.models.model_toml import MAX_LABELS_NBYTES
from mcpd.daemon.models.repository import read_model, read_repository
from mcpd.shm.errors import ModelFailed, NotFound

IMAGE = """\
[[input]]
name = "images"
width = 300
height = 200
"""


def write(folder: Path, toml: str | bytes, *versions: str, name: str = "thing") -> Path:
    """A model's folder with a file in place of the model; nobody loads it here."""
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "model.toml").write_bytes(toml if isinstance(toml, bytes) else toml.encode())
    for version in versions:
        (path / version).mkdir()
        (path / version / "model.onnx").write_bytes(b"model")
    return path


def faults(path: Path) -> list[str]:
    """The faults that reading the model tells of."""
    with pytest.raises(ModelFailed) as caught:
        read_model(path)
    first, *listed = caught.value.message.split("\n  ")
    assert str(path) in first
    return listed


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    model = read_model(write(tmp_path, IMAGE, "1"))
    (image,) = model.inputs
    assert (image.name, image.kind, image.width, image.height) == ("images", "image", 300, 200)
    assert (image.layout, image.dtype, image.channels) == ("nchw", "float32", "rgb")
    assert (image.resize, image.sampling) == ("stretch", "half_pixel")
    assert (image.scale, image.mean, image.std, image.pad_value) == (1.0, (0.0,), (1.0,), 0.0)
    assert (model.name, model.engine, model.versions) == ("thing", "onnx", (1,))
    assert (model.decode.kind, model.run.threads, model.run.provider) == ("tensors", 0, "cpu")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """\
        engine = "onnx"
        [[input]]
        name = "x"
        kind = "image"
        width = 640
        height = 480
        layout = "nhwc"
        dtype = "uint8"
        channels = "bgr"
        resize = "letterbox"
        sampling = "corner"
        scale = 0.5
        mean = [1, 2.5, 3]
        std = [4]
        pad_value = 114
        quant_scale = 0.25
        zero_point = 7
        [decode]
        kind = "detections"
        boxes = "b"
        box_format = "cxcywh"
        scores = "s"
        score_threshold = 0.25
        nms_iou = 0.5
        max_detections = 10
        class_agnostic = true
        labels = "names.txt"
        [run]
        threads = 3
        """,
        "1",
    )
    (path / "names.txt").write_text("cat\n\n dog \n\n")
    model = read_model(path)
    (image,) = model.inputs
    assert (image.mean, image.std, image.scale, image.pad_value) == ((1, 2.5, 3), (4,), 0.5, 114)
    assert (image.quant_scale, image.zero_point) == (0.25, 7)
    assert (model.decode.boxes, model.decode.scores) == ("b", "s")
    assert model.decode.labels == ("cat", "", "dog")
    assert model.decode.class_agnostic
    assert model.run.threads == 3


def test_a_tensor_input_needs_nothing_but_a_name(tmp_path: Path) -> None:
    toml = '[[input]]\nname = "a"\nkind = "tensor"\n[[input]]\nname = "b"\nkind = "tensor"\n'
    model = read_model(write(tmp_path, toml, "1"))
    assert [item.name for item in model.inputs] == ["a", "b"]


def test_the_highest_version_is_the_newest(tmp_path: Path) -> None:
    path = write(tmp_path, IMAGE, "1", "2", "10")
    (path / "notes").mkdir()
    (path / "03").mkdir()
    model = read_model(path)
    assert model.versions == (1, 2, 10)
    assert model.newest == 10
    assert model.version_path() == path / "10"
    assert model.version_path(2) == path / "2"
    with pytest.raises(NotFound, match=r"no version 3. It has 1, 2, 10"):
        model.version_path(3)


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """\
        engine = "caffe"
        colour = 1
        [[input]]
        name = ""
        width = 0
        hieght = 300
        layout = "chw"
        dtype = 7
        scale = 0
        mean = [1, 2]
        std = [1, 0, 1]
        pad_value = 256
        [decode]
        kind = "detections"
        box_format = "xywh"
        scores = "s"
        score_threshold = 1.5
        max_detections = true
        class_agnostic = "no"
        labels = "../../etc/passwd"
        [run]
        threads = -1
        provider = "tpu"
        """,
    )
    told = faults(path)
    for words in (
        'model.toml: engine = "caffe": must be one of "onnx"',
        "model.toml: colour = 1: no such key (known: engine)",
        'model.toml: input[0].name = "": must be a string',
        "model.toml: input[0].width = 0: must be an integer from 1 to 16384",
        'model.toml: input[0].hieght = 300: no such key; did you mean "height"?',
        "model.toml: input[0].height is missing: an integer from 1 to 16384",
        'model.toml: input[0].layout = "chw": must be one of "nchw", "nhwc"',
        "model.toml: input[0].dtype = 7: must be one of",
        "model.toml: input[0].scale = 0: must be a number, not 0",
        "model.toml: input[0].mean = [1, 2]: must be a list of 1 or 3 numbers",
        "model.toml: input[0].std = [1, 0, 1]: must be a list of 1 or 3 numbers, not 0",
        "model.toml: input[0].pad_value = 256: must be a number from 0 to 255",
        "model.toml: decode.boxes is missing: a string",
        'model.toml: decode.box_format = "xywh": must be one of "yxyx_unit", "xyxy_unit"',
        "model.toml: decode.score_threshold = 1.5: must be a number from 0 to 1",
        "model.toml: decode.max_detections = true: must be an integer from 1 to 1000",
        'model.toml: decode.class_agnostic = "no": must be true or false',
        'model.toml: decode.labels = "../../etc/passwd": must be the name of a file',
        "model.toml: run.threads = -1: must be an integer from 0 to 256",
        'model.toml: run.provider = "tpu": must be one of "cpu"',
        "no version: there must be a folder with a number for a name",
    ):
        assert any(line.startswith(words) for line in told), words
    assert len(told) == 21


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("", "model.toml: input: must be one or more tables, [[input]]"),
        ("input = 3", "model.toml: input: must be one or more tables, [[input]]"),
        ("decode = 3\n" + IMAGE, "model.toml: decode = 3: must be a table, [decode]"),
        (IMAGE + IMAGE, "model.toml: input: a model with an image input has that input alone"),
        (
            '[[input]]\nname = "a"\nkind = "tensor"\n' * 2,
            'model.toml: input: name = "a" is there twice',
        ),
        (
            IMAGE + 'channels = "gray"\nmean = [1, 2, 3]',
            "model.toml: input[0].mean = [1, 2, 3]: gray has one channel, not 3",
        ),
        (
            '[[input]]\nname = "a"\nkind = "tensor"\nwidth = 3',
            "model.toml: input[0].width = 3: no such key",
        ),
        (IMAGE + "scale = nan", "model.toml: input[0].scale = nan: must be a number"),
        (IMAGE + "scale = 1" + "0" * 400, "model.toml: input[0].scale = 1000"),
        (
            IMAGE + 'dtype = "float16"\nzero_point = 3',
            "model.toml: input[0].zero_point = 3: float16 is not quantised",
        ),
        (
            IMAGE + "quant_scale = 0.5",
            "model.toml: input[0].quant_scale = 0.5: float32 is not quantised",
        ),
        (
            IMAGE + 'dtype = "int8"\nzero_point = 128',
            "model.toml: input[0].zero_point = 128: int8 is -128 to 127",
        ),
        (
            IMAGE + 'dtype = "uint8"\nzero_point = -1',
            "model.toml: input[0].zero_point = -1: uint8 is 0 to 255",
        ),
        (
            IMAGE + 'dtype = "int8"\nquant_scale = 0',
            "model.toml: input[0].quant_scale = 0: must be",
        ),
        (IMAGE + "[decode]\nboxes = 'b'", 'model.toml: decode.boxes = "b": no such key'),
    ],
)
def test_a_fault_is_told_with_key_and_value(tmp_path: Path, toml: str, words: str) -> None:
    told = faults(write(tmp_path, toml, "1"))
    assert any(line.startswith(words) for line in told)


@pytest.mark.parametrize(
    "toml",
    [
        b"[[input",
        b"\xff\xfe\x00",
        b"a = 1\na = 2",
        b"a = " + b"[" * 5000,
        b"a = 1" + b"0" * 5000,
    ],
)
def test_a_file_that_is_not_toml_is_told(tmp_path: Path, toml: bytes) -> None:
    assert faults(write(tmp_path, toml, "1"))[0].startswith("model.toml is not TOML: ")


def test_a_missing_model_toml_and_a_missing_model_file_are_told(tmp_path: Path) -> None:
    path = tmp_path / "thing"
    (path / "1").mkdir(parents=True)
    assert faults(path) == [
        "model.toml is missing; docs/models.md shows what it needs",
        "1/: no model file; must have model.onnx",
    ]


def test_labels_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    toml = IMAGE + (
        "[decode]\nkind = 'detections'\nboxes = 'b'\nbox_format = 'xyxy'\nscores = 's'\n"
        "labels = 'labels.txt'\n"
    )
    path = write(tmp_path, toml, "1")
    assert "there is no" in faults(path)[0]
    (path / "labels.txt").write_bytes(b"\xff\xff")
    assert "is not UTF-8" in faults(path)[0]
    (path / "labels.txt").write_bytes(b"x\n" * MAX_LABELS_NBYTES)
    assert f"has {2 * MAX_LABELS_NBYTES} bytes, the limit is" in faults(path)[0]


def test_a_folder_name_that_cannot_be_a_model_is_told(tmp_path: Path) -> None:
    told = faults(write(tmp_path, IMAGE, "1", name="a model"))
    assert told[0].startswith("folder name 'a model'")


def test_a_broken_model_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path, IMAGE, "1", name="good")
    write(tmp_path, "nonsense", "1", name="bad")
    (tmp_path / ".fetch-x").mkdir()
    (tmp_path / "README").write_text("not a model")
    repository = read_repository(tmp_path)
    assert list(repository.models) == ["good"]
    assert list(repository.broken) == ["bad"]
    assert "is not TOML" in repository.broken["bad"].message


def test_a_folder_whose_name_is_not_text_is_told_in_text(tmp_path: Path) -> None:
    write(tmp_path, IMAGE, "1", name="good")
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xff")
    repository = read_repository(tmp_path)
    assert list(repository.models) == ["good"]
    ((name, error),) = repository.broken.items()
    assert name == "bad\\xff"
    assert "bad\\xff" in error.message


@pytest.mark.parametrize("file", ["model.toml", "labels.txt"])
def test_a_pipe_in_place_of_a_file_is_told_and_not_waited_for(tmp_path: Path, file: str) -> None:
    decode = "[decode]\nkind = 'detections'\nboxes = 'b'\nbox_format = 'xyxy'\nscores = 's'\n"
    path = write(tmp_path, IMAGE + decode + "labels = 'labels.txt'\n", "1")
    (path / file).unlink(missing_ok=True)
    os.mkfifo(path / file)
    assert "it is not a file" in faults(path)[0]


def test_a_folder_that_this_user_may_not_read_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path, IMAGE, "1", name="good")
    write(tmp_path, IMAGE, "1", name="closed")
    (tmp_path / "closed" / "1").chmod(0)
    write(tmp_path, IMAGE, "1", name="shut").chmod(0)
    code = (
        "import os, sys; from pathlib import Path; "
        "from mcpd.daemon.models.repository import read_repository as read; "
        "folder = os.open(sys.argv[1], os.O_RDONLY); os.seteuid(os.getuid() or 65534); "
        "found = read(Path(f'/proc/self/fd/{folder}')); "
        "print(*found.models, *sorted(found.broken))"
    )
    tmp_path.chmod(0o755)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        (tmp_path / "shut").chmod(0o755)
        (tmp_path / "closed" / "1").chmod(0o755)
    assert done.stdout.split() == ["good", "closed", "shut"]


def test_a_repository_that_is_not_there_is_empty(tmp_path: Path) -> None:
    repository = read_repository(tmp_path / "nowhere")
    assert not repository.models
    assert not repository.broken


def test_a_repository_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ModelFailed, match="cannot be read: Not a directory"):
        read_repository(path)
