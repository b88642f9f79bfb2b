"""Photographs with known contents, out of the wheel of scikit-image on PyPI (CC0, public domain).

The wheel is downloaded once into a folder that outlives the test run and is never installed.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPEC = "scikit-image==0.25.2"


def cache_folder() -> Path:
    """Where tests keep what they download: $MCPD_TEST_CACHE or ~/.cache/mcpd-tests."""
    named = os.environ.get("MCPD_TEST_CACHE")
    folder = Path(named) if named else Path.home() / ".cache" / "mcpd-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def read_photo(name: str) -> NDArray[np.uint8]:
    """A photograph such as "chelsea.png" as RGB, uint8 [height, width, 3]."""
    from PIL import Image

    with zipfile.ZipFile(_wheel()) as archive:
        data = archive.read(f"skimage/data/{name}")
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def _wheel() -> Path:
    folder = cache_folder() / "scikit-image"
    found = sorted(folder.glob("*.whl"))
    if not found:
        command: list[Any] = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", folder, SPEC]
        subprocess.run(command, check=True, timeout=600)
        found = sorted(folder.glob("*.whl"))
    return found[0]
