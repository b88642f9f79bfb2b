"""The clip: its motion, its rectangles, and that it is made once and whole."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from mcpd.cli.demo import clip as clips
from mcpd.cli.demo.clip import FPS, HEIGHT, MOTIONS, WIDTH, cached_clip, rectangle_at
from mcpd.cli.demo.photos import PHOTOS, load_photos
from mcpd.shm.errors import InvalidRequest, NotFound

TIMES = [index / FPS for index in range(12 * FPS)]
COLOURS = {"person": (200, 40, 40), "cat": (40, 200, 40), "cup": (40, 40, 200)}


def write_wheel(folder: Path, *, scale: int = 1) -> Path:
    """A wheel with plain photos: the object's rectangle filled with its colour, black around."""
    wheel = folder / "scikit_image-0.26.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for photo in PHOTOS:
            image = Image.new("RGB", (photo.size[0] * scale, photo.size[1] * scale))
            image.paste(COLOURS[photo.label], photo.rectangle)
            data = io.BytesIO()
            image.save(data, "PNG")
            archive.writestr(f"skimage/data/{photo.file}", data.getvalue())
    return wheel


def silent(_done: int, _total: int) -> None:
    """A progress that nobody watches."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    write_wheel(folder)
    return folder


def test_every_photo_stays_whole_in_the_picture_at_all_times() -> None:
    for motion in MOTIONS.values():
        for seconds in TIMES:
            left, top = motion.place(seconds)
            assert left >= 0
            assert top >= 0
            assert left + motion.size[0] <= WIDTH
            assert top + motion.size[1] <= HEIGHT


def test_no_photo_ever_covers_another() -> None:
    for seconds in TIMES:
        cover = np.zeros((HEIGHT, WIDTH), np.uint8)
        for motion in MOTIONS.values():
            left, top = motion.place(seconds)
            cover[top : top + motion.size[1], left : left + motion.size[0]] += 1
        assert cover.max() == 1


def test_every_photo_moves() -> None:
    for motion in MOTIONS.values():
        assert len({motion.place(seconds) for seconds in TIMES}) > 50


def test_rectangles_lie_within_their_photos() -> None:
    for photo in PHOTOS:
        x0, y0, x1, y1 = photo.rectangle
        assert 0 <= x0 < x1 <= photo.size[0]
        assert 0 <= y0 < y1 <= photo.size[1]


def test_the_true_rectangles_are_where_the_objects_are_drawn(cache: Path) -> None:
    """The picture decoded has the object's colour just inside its rectangle, not just outside."""
    clip = cached_clip(cache, 1, silent)
    with av.open(str(clip.path)) as container:
        frames = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    assert len(frames) == len(clip.truth) == FPS
    for index in (0, 13, 29):
        for label, (x0, y0, x1, y1) in clip.truth[index].items():
            centre_y, centre_x = int(y0 + y1) // 2, int(x0 + x1) // 2
            margin = 6
            inside = frames[index][centre_y, [int(x0) + margin, int(x1) - margin]]
            assert np.abs(inside.astype(int) - COLOURS[label]).max() < 40
            if label == "cup":  # The others reach the edge of their photo on some side.
                outside = frames[index][[int(y0) - margin, int(y1) + margin], centre_x]
                assert np.abs(outside.astype(int) - COLOURS[label]).max() > 100


def test_the_clip_is_made_once(cache: Path) -> None:
    first = cached_clip(cache, 1, silent)
    made = first.path.stat().st_mtime_ns
    again = cached_clip(cache, 1, silent)
    assert again == first
    assert again.path.stat().st_mtime_ns == made


def test_another_recipe_makes_a_clip_in_place_of_the_old_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cached_clip(cache, 2, silent)
    monkeypatch.setattr(clips, "RECIPE", clips.RECIPE + 1)
    after = cached_clip(cache, 2, silent)
    assert after.path.exists()
    assert not before.path.exists()


def test_the_same_recipe_gives_the_same_bytes(tmp_path: Path, cache: Path) -> None:
    write_wheel(tmp_path)
    mine = cached_clip(tmp_path, 1, silent)
    assert mine.path.read_bytes() == cached_clip(cache, 1, silent).path.read_bytes()


def test_a_clip_cut_short_leaves_nothing(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)

    def interrupt(done: int, _total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_clip(tmp_path, 1, interrupt)
    assert list(tmp_path.iterdir()) == [wheel]


def test_a_clip_of_no_seconds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"0 s.*1 to 60"):
        cached_clip(tmp_path, 0, silent)


def test_photos_of_another_size_are_refused(tmp_path: Path) -> None:
    """The rectangles would not fit them."""
    write_wheel(tmp_path, scale=2)
    with pytest.raises(NotFound, match="1024x1024"):
        load_photos(tmp_path)


def test_rectangles_move_with_their_photo() -> None:
    photo = PHOTOS[0]
    motion = MOTIONS[photo.label]
    (left, top), (later_left, later_top) = motion.place(0.0), motion.place(1.0)
    before, after = rectangle_at(photo, motion, 0.0), rectangle_at(photo, motion, 1.0)
    assert after[0] - before[0] == pytest.approx(later_left - left)
    assert after[3] - before[3] == pytest.approx(later_top - top)
