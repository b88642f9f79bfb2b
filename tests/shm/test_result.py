"""Results: what they copy and what they keep, detections without numpy, and lies in a slot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mcpd.shm.errors import STATUS_CODES, LimitExceeded, McpdError, ProtocolError, from_wire
from mcpd.shm.frame import FLAG_PARTIAL
from mcpd.shm.result import COPY_NBYTES, Detection, Result
from mcpd.shm.stream import ReaderStream
from tests.support.streams import LocalStream

LABELS = ["red", "green"]


class ResultStream:
    """A results stream that a test plays the worker of."""

    def __init__(self) -> None:
        self.stream = LocalStream(slot_nbytes=4 * COPY_NBYTES, slots=8)
        self.reader: ReaderStream = self.stream.attach("lossless", max_pins=1)

    def give(self, tensors: dict[str, Any], **metadata: Any) -> Result:
        """Publishes a result and takes it."""
        with self.stream.writer.acquire(5) as slot:
            slot.set_tensors({name: np.asarray(array) for name, array in tensors.items()})
            for name, value in metadata.items():
                setattr(slot, name, value)
        frame = self.reader.next(5)
        return Result(frame, stream="cam0", model="m", version=3, labels=LABELS)


@pytest.fixture
def results() -> Iterator[ResultStream]:
    made = ResultStream()
    yield made
    made.stream.close()


def boxes(count: int) -> dict[str, Any]:
    return {
        "boxes": np.arange(4 * count, dtype=np.float32).reshape(count, 4),
        "scores": np.linspace(1, 0.5, count, dtype=np.float32),
        "labels": np.arange(count, dtype=np.int32),
    }


def test_detections_have_boxes_scores_and_names(results: ResultStream) -> None:
    result = results.give(boxes(3))
    assert result.detections == [
        Detection(0, 1, 2, 3, 1.0, "red", 0),
        Detection(4, 5, 6, 7, 0.75, "green", 1),
        Detection(8, 9, 10, 11, 0.5, "2", 2),  # a class without a name
    ]
    assert result.detections[1].to_dict() == {
        "box": [4.0, 5.0, 6.0, 7.0],
        "score": 0.75,
        "label": "green",
        "class_id": 1,
    }


def test_no_objects_are_no_detections(results: ResultStream) -> None:
    result = results.give(boxes(0))
    assert result.detections == []
    assert result.tensors["boxes"].shape == (0, 4)


def test_other_tensors_are_no_detections(results: ResultStream) -> None:
    assert results.give({"mean": np.zeros(3)}).detections == []


@pytest.mark.parametrize(
    "change",
    [
        {"scores": np.zeros(2, np.float32)},
        {"labels": np.zeros(4, np.int32)},
        {"boxes": np.zeros((3, 5), np.float32)},
        {"labels": np.zeros(3, np.int64)},
        {"boxes": np.zeros((3, 4), np.float64)},
    ],
)
def test_tensors_that_do_not_agree_are_a_protocol_error(
    results: ResultStream, change: dict[str, Any]
) -> None:
    result = results.give({**boxes(3), **change})
    with pytest.raises(ProtocolError):
        _ = result.detections


def test_small_results_leave_no_pin(results: ResultStream) -> None:
    kept = [results.give({"x": np.full(1000, number)}) for number in range(20)]
    assert [int(result["x"][0]) for result in kept] == list(range(20))


def test_large_tensor_stays_in_shared_memory_and_keeps_its_pin(results: ResultStream) -> None:
    large = np.arange(COPY_NBYTES, dtype=np.uint16)
    result = results.give({"large": large, "small": np.ones(3)})
    with pytest.raises(LimitExceeded, match="pins are in use"):
        results.give({"x": np.ones(1)})
    np.testing.assert_array_equal(result["large"], large)
    result.close()
    result.close()
    assert results.reader.next(5).seq == 2


def test_view_of_a_large_tensor_outlives_its_result(results: ResultStream) -> None:
    large = np.arange(COPY_NBYTES, dtype=np.uint16)
    view = results.give({"large": large})["large"]
    for _ in range(6):
        with results.stream.writer.acquire(0) as slot:
            slot.set_tensors({"large": np.zeros(COPY_NBYTES, np.uint16)})
            slot.core.seq  # noqa: B018
        if results.stream.writer.stats()["held"]:
            break
    np.testing.assert_array_equal(view, large)
    del view
    results.reader.next(5).close()


def test_failed_frame_is_a_result_with_status_and_words(results: ResultStream) -> None:
    text = np.frombuffer("kaputt: \u00e9".encode(), np.uint8)
    result = results.give({"error": text}, status=STATUS_CODES.index("model"))
    assert (result.status, result.error, result.ok) == ("model", "kaputt: \u00e9", False)
    assert result.detections == []
    with pytest.raises(McpdError, match="model 'm': kaputt") as caught:
        result.raise_for_status()
    assert caught.value.code == "model"


@pytest.mark.parametrize("status", range(1, len(STATUS_CODES)))
def test_every_status_is_an_error_of_ours(results: ResultStream, status: int) -> None:
    result = results.give({}, status=status)
    assert result.error == f"status {status}"
    with pytest.raises(type(from_wire(STATUS_CODES[status], ""))):
        result.raise_for_status()


def test_unknown_status_is_an_error_too(results: ResultStream) -> None:
    result = results.give({}, status=77)
    assert (result.status, result.ok) == ("error", False)
    with pytest.raises(McpdError):
        result.raise_for_status()


def test_times_and_origin_are_carried(results: ResultStream) -> None:
    result = results.give(
        {},
        source_seq=9,
        source_stream=4,
        source_publish_ns=100,
        awake_ns=200,
        finish_ns=300,
        pts_ns=5,
        capture_ns=6,
        model_version=8,
        trace_id=b"t" * 16,
        flags=FLAG_PARTIAL,
    )
    assert (result.source_seq, result.source_stream, result.stream) == (9, 4, "cam0")
    assert (result.source_publish_ns, result.awake_ns, result.finish_ns) == (100, 200, 300)
    assert (result.pts_ns, result.capture_ns, result.version) == (5, 6, 8)
    assert (result.trace_id, result.partial, result.seq) == (b"t" * 16, True, 1)
    assert result.latency_ns == result.publish_ns - 100


def test_result_is_written_as_json(results: ResultStream) -> None:
    fields = json.loads(json.dumps(results.give(boxes(1)).to_dict()))
    assert fields["stream"] == "cam0"
    assert fields["detections"][0]["label"] == "red"
    assert fields["tensors"]["boxes"] == {"dtype": "float32", "shape": [1, 4]}
    assert "boxes[1, 4]" in repr(results.give(boxes(1)))


def test_slot_that_lies_raises_and_gives_its_pin_back(results: ResultStream) -> None:
    for _ in range(3):  # one pin: a leak would show at once
        with results.stream.writer.acquire(5) as slot:
            slot.set_tensors({"x": np.ones(8)})
            slot.core.nbytes = 8
        frame = results.reader.next(5)
        with pytest.raises(ProtocolError):
            Result(frame, stream="cam0", model="m", version=1, labels=[])
        del frame


DETECT = """
import sys
from mcpd.shm.result import Result
from mcpd.shm import connect
with connect(sys.argv[1]) as client, client.results("cam0", model="tiny-image") as results:
    print("ready", flush=True)
    print([d.label for d in results.next(30).detections], "numpy" in sys.modules)
"""


def test_detections_are_read_without_numpy(daemon: Any) -> None:
    from mcpd.shm import connect

    with (
        connect(daemon.socket) as client,
        client.create_stream("cam0", width=8, height=8, format="rgb24") as stream,
        subprocess.Popen(
            [sys.executable, "-P", "-c", DETECT, daemon.socket], stdout=subprocess.PIPE, text=True
        ) as reader,
    ):
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        with stream.acquire() as slot:
            slot.planes[0][...] = (255, 0, 0)
        assert reader.stdout.readline() == "['red'] False\n"
