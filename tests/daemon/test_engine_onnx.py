"""The ONNX Runtime engine: right answers, no copy of its input, clear errors."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from mcpd.daemon.engines import open_engine
from mcpd.daemon.engines.engine import Engine, TensorInfo
from mcpd.daemon.engines.signature import check_signature
from mcpd.daemon.models.repository import read_model
from mcpd.shm.errors import ModelFailed
from tests.support.models import TRIVIAL_TOML, write_model, write_tiny_image, write_trivial

ROOT = Path(__file__).parents[2]


def open_model(version_path: Path) -> Engine:
    return open_engine(read_model(version_path.parent), version_path)


def test_a_model_says_what_it_takes_and_gives(tmp_path: Path) -> None:
    engine = open_model(write_trivial(tmp_path))
    assert engine.provider == "cpu"
    assert engine.inputs == {"image": TensorInfo("uint8", (1, -1, -1, 3))}
    assert engine.outputs == {"mean": TensorInfo("float32", (1, 3))}
    engine.close()
    engine.close()


def test_a_model_gives_the_right_answer(tmp_path: Path) -> None:
    engine = open_model(write_trivial(tmp_path))
    image = np.zeros((1, 6, 9, 3), np.uint8)
    image[:, :4, :4] = (10, 20, 30)
    assert engine.run({"image": image})["mean"].tolist() == [[10, 20, 30]]
    engine.close()


def test_read_only_shared_memory_is_taken(tmp_path: Path) -> None:
    engine = open_model(write_trivial(tmp_path))
    file = os.memfd_create("frame")
    os.write(file, bytes([7]) * (8 * 8 * 3))
    with mmap.mmap(file, 8 * 8 * 3, prot=mmap.PROT_READ) as memory:
        image = np.frombuffer(memory, np.uint8).reshape(1, 8, 8, 3)
        assert not image.flags.writeable
        assert engine.run({"image": image})["mean"].tolist() == [[7, 7, 7]]
        del image
    os.close(file)
    engine.close()


UNREADABLE = """
    import ctypes, mmap, sys
    from pathlib import Path
    import numpy as np
    from mcpd.daemon.engines import open_engine
    from mcpd.daemon.models.repository import read_model

    path = Path(sys.argv[1])
    engine = open_engine(read_model(path.parent), path)
    side = 2048
    readable, total = 16 * side * 3, side * side * 3
    memory = mmap.mmap(-1, total)
    memory[:readable] = bytes([9]) * readable
    image = np.frombuffer(memory, np.uint8).reshape(1, side, side, 3)
    start = ctypes.c_void_p(image.ctypes.data + readable)
    assert ctypes.CDLL(None).mprotect(start, ctypes.c_size_t(total - readable), 0) == 0
    print("ready", flush=True)
    if sys.argv[2] == "copy":
        image = image.copy()
    print(engine.run({"image": image})["mean"].tolist(), flush=True)
"""
"""Runs the model on an image of which only the first rows may be read; whoever copies it dies."""


def run_on_unreadable(version_path: Path, how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", textwrap.dedent(UNREADABLE), str(version_path), how]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_input_is_read_where_it_lies(tmp_path: Path) -> None:
    done = run_on_unreadable(write_trivial(tmp_path), "run")
    assert done.stdout == "ready\n[[9.0, 9.0, 9.0]]\n", done.stderr


def test_a_copy_of_the_input_would_be_seen(tmp_path: Path) -> None:
    done = run_on_unreadable(write_trivial(tmp_path), "copy")
    assert (done.stdout, done.returncode) == ("ready\n", -11)


@pytest.mark.parametrize("content", [b"", b"not a model", os.urandom(4096), b"\x08\x08\x12\xff"])
def test_a_file_that_is_no_model_is_told_with_its_path(tmp_path: Path, content: bytes) -> None:
    version_path = write_trivial(tmp_path)
    (version_path / "model.onnx").write_bytes(content)
    with pytest.raises(ModelFailed) as caught:
        open_model(version_path)
    assert str(version_path / "model.onnx") in caught.value.message
    assert f"({len(content)} bytes) is not an ONNX model" in caught.value.message


def test_a_truncated_model_is_told(tmp_path: Path) -> None:
    version_path = write_tiny_image(tmp_path)
    file = version_path / "model.onnx"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ModelFailed, match="is not an ONNX model"):
        open_model(version_path)


def test_a_model_file_that_went_away_is_told(tmp_path: Path) -> None:
    version_path = write_trivial(tmp_path)
    config = read_model(version_path.parent)
    (version_path / "model.onnx").unlink()
    with pytest.raises(ModelFailed, match="does not exist"):
        open_engine(config, version_path)


def test_a_model_that_takes_text_is_refused(tmp_path: Path) -> None:
    text = helper.make_tensor_value_info("image", TensorProto.STRING, [1])
    out = helper.make_tensor_value_info("out", TensorProto.STRING, [1])
    node = helper.make_node("Identity", ["image"], ["out"])
    graph = helper.make_graph([node], "text", [text], [out])
    version_path = write_model(tmp_path, "text", graph, TRIVIAL_TOML)
    with pytest.raises(ModelFailed, match=r"'image' is a tensor\(string\)"):
        open_model(version_path)


def test_a_failing_run_is_told_and_the_next_one_works(tmp_path: Path) -> None:
    engine = open_model(write_trivial(tmp_path))
    with pytest.raises(ModelFailed, match="failed on this input"):
        engine.run({"image": np.zeros((1, 6, 9, 4), np.uint8)})
    with pytest.raises(ModelFailed, match="failed on this input"):
        engine.run({})
    assert engine.run({"image": np.ones((1, 6, 9, 3), np.uint8)})["mean"].tolist() == [[1, 1, 1]]
    engine.close()


def test_a_configuration_of_another_model_is_told_with_every_difference(tmp_path: Path) -> None:
    version_path = write_tiny_image(tmp_path)
    toml = version_path.parent / "model.toml"
    text = toml.read_text()
    toml.write_text(text.replace("width = 8", "width = 9").replace('"boxes"', '"rectangles"'))
    engine = open_model(version_path)
    with pytest.raises(ModelFailed) as caught:
        check_signature(read_model(version_path.parent), engine.inputs, engine.outputs)
    _, *told = caught.value.message.split("\n  ")
    assert told == [
        'input "images" is to be float32 [1, 3, 8, 9], the model takes float32 [?, 3, 8, 8]',
        'decode.boxes = "rectangles": the model has "boxes" (float32 [?, 1, 4]), '
        '"scores" (float32 [?, 1, 3])',
    ]
    toml.write_text(text.replace('"images"', '"pictures"'))
    with pytest.raises(ModelFailed) as caught:
        check_signature(read_model(version_path.parent), engine.inputs, engine.outputs)
    _, *told = caught.value.message.split("\n  ")
    assert told == [
        'input "pictures": the model has "images" (float32 [?, 3, 8, 8])',
        'input "images" of the model has no [[input]]',
    ]
    engine.close()


def test_loading_a_model_leaves_no_telemetry_behind(tmp_path: Path) -> None:
    """The runtime writes an identifier and events under the home directory before it sends them."""
    version_path = write_trivial(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    unset = {"ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "CI", "XDG_CACHE_HOME"}
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    code = f"""
        from pathlib import Path
        from mcpd.daemon.engines import open_engine
        from mcpd.daemon.models.repository import read_model
        path = Path({str(version_path)!r})
        open_engine(read_model(path.parent), path).close()
    """
    subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)],
        check=True,
        env=environment | {"HOME": str(home)},
    )
    assert list(home.rglob("*")) == []


def test_outputs_that_a_result_cannot_carry_are_told(tmp_path: Path) -> None:
    config = read_model(write_trivial(tmp_path).parent)
    inputs = {"image": TensorInfo("uint8", (1, -1, -1, 3))}
    outputs = {f"{'long' * 8}{i}": TensorInfo("float32", (1,)) for i in range(17)}
    with pytest.raises(ModelFailed, match="17 outputs, a result has room for 16") as caught:
        check_signature(config, inputs, outputs)
    assert "the name has more than 31 bytes" in caught.value.message
