"""Several frames into one batch tensor, and several threads: the same to the bit as one by one."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcpd.native import _core
from tests.support.pictures import FORMATS, make_picture, options
from tests.support.prepare import empty_images, prepare

pytestmark = pytest.mark.usefixtures("isa")

OUT: dict[str, Any] = {"out_width": 50, "out_height": 120, "resize": "letterbox", "pad_value": 9.0}


@pytest.mark.parametrize("threads", [1, 2, 3, 64])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_frames_of_different_geometry_become_one_batch(
    threads: int, layout: str, dtype: str
) -> None:
    chosen = {**OUT, "layout": layout, "dtype": dtype}
    pictures = [make_picture(name, 30 + 2 * i, 90 - 7 * i) for i, name in enumerate(FORMATS)]
    preparations = [_core.Preparation(**options(one, **chosen)) for one in pictures]
    places = [3, 0, 7, 1, 2, 6, 9, 4]
    batch = empty_images(10, **options(pictures[0], **chosen))
    untouched = batch.copy()
    frames = [
        (preparation, picture.data.data, place)
        for preparation, picture, place in zip(preparations, pictures, places, strict=True)
    ]
    _core.Preparation.run_batch(frames, batch.data, threads=threads)
    for picture, place in zip(pictures, places, strict=True):
        assert batch[place].tobytes() == prepare(picture, **chosen).tobytes()
    for place in (5, 8):
        assert batch[place].tobytes() == untouched[place].tobytes()


def test_frames_of_one_geometry_share_a_preparation() -> None:
    pictures = [make_picture("nv12", 64, 48) for _ in range(5)]
    for seed, picture in enumerate(pictures):
        picture.data[:] = np.random.default_rng(seed).integers(0, 256, picture.data.size, np.uint8)
    preparation = _core.Preparation(**options(pictures[0], **OUT))
    batch = empty_images(5, **options(pictures[0], **OUT))
    frames = [(preparation, one.data.data, index) for index, one in enumerate(pictures)]
    _core.Preparation.run_batch(iter(frames), batch.data, threads=2)
    for index, picture in enumerate(pictures):
        assert np.array_equal(batch[index], prepare(picture, **OUT))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    format=st.sampled_from(sorted(FORMATS)),
    height=st.integers(1, 300),
    out_width=st.integers(1, 60),
    out_height=st.integers(1, 200),
    threads=st.integers(2, 64),
    rotation=st.sampled_from([0, 90, 180, 270]),
    sampling=st.sampled_from(["half_pixel", "area"]),
    layout=st.sampled_from(["nchw", "nhwc"]),
)
def test_any_number_of_threads_makes_the_same_image(
    format: str, height: int, threads: int, **changes: Any
) -> None:
    picture = make_picture(format, 44, height)
    changes["resize"] = "letterbox"
    preparation = _core.Preparation(**options(picture, **changes))
    image = empty_images(1, **options(picture, **changes))
    preparation.run(picture.data.data, image.data, threads=threads)
    assert np.array_equal(image[0], prepare(picture, **changes))


def test_padding_that_is_there_is_left() -> None:
    picture = make_picture("i420", 64, 48)
    chosen = options(picture, **OUT)
    preparation = _core.Preparation(**chosen)
    image = empty_images(1, **chosen)
    preparation.run(picture.data.data, image.data, padded=True)
    padding = prepare(picture, **OUT) == 9.0
    assert (image[0][padding] == 99).all()
    _core.Preparation.run_batch([(preparation, picture.data.data, 0)], image.data, padded=True)
    assert (image[0][padding] == 99).all()
    preparation.run(picture.data.data, image.data)
    assert np.array_equal(image[0], prepare(picture, **OUT))


def test_no_frames_are_no_work() -> None:
    _core.Preparation.run_batch([], bytearray(8))


def test_batches_may_run_at_once() -> None:
    picture = make_picture("nv12", 320, 240)
    chosen = options(picture, out_width=100, out_height=100)
    preparation = _core.Preparation(**chosen)
    want = prepare(picture, out_width=100, out_height=100)
    batches = [empty_images(3, **chosen) for _ in range(3)]

    def run(batch: Any) -> None:
        for _ in range(10):
            frames = [(preparation, picture.data.data, index) for index in range(3)]
            _core.Preparation.run_batch(frames, batch.data, threads=2)

    threads = [threading.Thread(target=run, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(image, want) for batch in batches for image in batch)


# ---- bad input -----------------------------------------------------------------------------------


def test_a_bad_batch_is_refused_and_nothing_is_written() -> None:
    picture, small = make_picture("rgb24", 40, 30), make_picture("rgb24", 20, 10)
    one = _core.Preparation(**options(picture))
    other = _core.Preparation(**options(picture, out_width=21))
    halves = _core.Preparation(**options(picture, dtype="float16"))
    batch = empty_images(2, **options(picture))
    good = (one, picture.data.data, 0)
    cases: list[tuple[Any, type[Exception], str]] = [
        ([good, (one, picture.data.data, 0)], ValueError, "frames 0 and 1 are both image 0"),
        ([good, (other, picture.data.data, 1)], ValueError, "frame 1 is prepared to another shape"),
        ([good, (halves, picture.data.data, 1)], ValueError, "frame 1 is prepared to another"),
        ([good, (one, picture.data.data, 2)], ValueError, "image 2 does not fit"),
        ([good, (one, picture.data.data, -1)], ValueError, "image -1 does not fit"),
        ([good, (one, small.data.data, 1)], ValueError, "the source has 600 bytes"),
        ([good, (one, picture.data.data)], ValueError, r"frame 1 is not \(Preparation"),
        ([good, ("one", picture.data.data, 1)], TypeError, "frame 1 has no Preparation"),
        ([good, (one, "text", 1)], TypeError, "bytes-like"),
        ([good, (one, picture.data.data, "1")], TypeError, "int"),
        (5, TypeError, "iterable"),
    ]
    for frames, error, words in cases:
        with pytest.raises(error, match=words):
            _core.Preparation.run_batch(frames, batch.data)
    assert (batch == 99).all()


@pytest.mark.parametrize("threads", [0, -1, 65, 1000])
def test_a_number_of_threads_out_of_range_is_refused(threads: int) -> None:
    picture = make_picture("rgb24", 40, 30)
    one = _core.Preparation(**options(picture))
    batch = empty_images(1, **options(picture))
    with pytest.raises(ValueError, match=f"threads is {threads}, not 1 to 64"):
        one.run(picture.data.data, batch.data, threads=threads)
    with pytest.raises(ValueError, match=f"threads is {threads}, not 1 to 64"):
        _core.Preparation.run_batch([(one, picture.data.data, 0)], batch.data, threads=threads)
