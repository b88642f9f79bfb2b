"""CPU of decoding 1080p H.264: alone, straight into slots, and decoded then copied into slots.

libavcodec decodes one clip in a process for each way, round after round, in an order that turns;
a pass that is not counted comes first and makes stream and buffers. Figures are medians over the
rounds of CPU time a frame, of the whole process; ratios are medians of the round's ratio.

Needs FFmpeg's development packages (libavformat-dev libavcodec-dev libavutil-dev), a C compiler and
make; the clip is made with PyAV.

    python -m bench.decode [--json] [--rounds 5] [--frames 60]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from bench.harness import Goal, at_most, private_daemon, report

WIDTH: Final = 1920
HEIGHT: Final = 1080
GOAL: Final = 1.03
"""Times the CPU of decoding alone that decoding into slots may take."""
WAYS: Final = ("alone", "slots", "copy")
THREADS: Final = (1, 2)
PASSES: Final = 2
FFMPEG: Final = ("libavformat", "libavcodec", "libavutil")
ROOT: Final = Path(__file__).resolve().parents[1]


def write_clip(path: Path, frames: int) -> None:
    """1080p H.264 with B-frames and four reference frames, about 6 Mbit/s: moving, with noise."""
    import av

    random = np.random.default_rng(1)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    noise = random.integers(0, 24, (HEIGHT, WIDTH), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.bit_rate = 6_000_000
        stream.options = {"bf": "3", "refs": "4", "preset": "veryfast"}
        for number in range(frames):
            ramp = ((columns + 3 * number) // 2 + (rows + number) // 3) % 200
            luma = (ramp + np.roll(noise, 5 * number, 1)).astype(np.uint8)
            chroma = np.full((HEIGHT // 2, WIDTH), 100 + number % 50, np.uint8)
            frame = av.VideoFrame.from_ndarray(np.vstack([luma, chroma]), format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def build(folder: Path) -> Path:
    """bench/c/decode.c with libmcpd, installed into `folder`, and the example's slot buffers."""
    prefix = folder / "prefix"
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "-s", "-C", str(ROOT / "native"), f"BUILD={folder / 'build'}"]
    subprocess.run([*make, f"PREFIX={prefix}", "install"], check=True, env=env)
    env["PKG_CONFIG_PATH"] = str(prefix / "lib/pkgconfig")
    command = ["pkg-config", "--cflags", "--libs", "mcpd", *FFMPEG]
    flags = subprocess.run(command, check=True, env=env, capture_output=True, text=True).stdout
    examples = ROOT / "native/examples"
    sources = [ROOT / "bench/c/decode.c", examples / "slot_buffers.c", examples / "picture.c"]
    binary = folder / "decode"
    rpath = f"-Wl,-rpath,{prefix / 'lib'}"
    arguments = ["-std=c11", "-O3", f"-I{examples}", *map(str, sources), *flags.split(), rpath]
    subprocess.run(["gcc", *arguments, "-pthread", "-o", str(binary)], check=True)
    return binary


def cpu_of(binary: Path, way: str, clip: Path, threads: int, socket: str) -> float:
    """CPU microseconds a frame of one process: the median of its passes."""
    command = [str(binary), way, str(clip), str(threads), str(PASSES), socket]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    if way == "slots" and " copied 0\n" not in done.stderr:
        raise RuntimeError(f"not every frame was decoded in place: {done.stderr}")
    passes = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    return median(cpu_ns / frames / 1000 for cpu_ns, frames in passes)


def run(rounds: int, frames: int) -> tuple[dict[str, dict[str, float]], list[Goal]]:
    """Figures and goals."""
    figures: dict[str, dict[str, float]] = {}
    goals: list[Goal] = []
    with tempfile.TemporaryDirectory() as name, private_daemon() as daemon:
        folder = Path(name)
        binary = build(folder)
        clip = folder / "clip.mp4"
        write_clip(clip, frames)
        for threads in THREADS:
            seen: dict[str, list[float]] = {way: [] for way in WAYS}
            for number in range(rounds):
                turn = number % len(WAYS)
                for way in (*WAYS[turn:], *WAYS[:turn]):
                    seen[way].append(cpu_of(binary, way, clip, threads, str(daemon.socket)))
            row = {f"{way} us/frame": median(values) for way, values in seen.items()}
            for way in WAYS[1:]:
                pairs = zip(seen[way], seen["alone"], strict=True)
                row[f"{way}/alone"] = median(one / alone for one, alone in pairs)
            name_of_row = f"{threads} thread{'s' if threads > 1 else ''}"
            figures[name_of_row] = row
            goals.append(
                at_most(
                    f"CPU of decoding into slots over alone, {name_of_row}",
                    row["slots/alone"],
                    GOAL,
                )
            )
    return figures, goals


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=60)
    arguments = parser.parse_args()
    if subprocess.run(["pkg-config", "--exists", *FFMPEG], check=False).returncode != 0:
        print(
            "bench.decode: FFmpeg's headers are missing: apt-get install libavformat-dev "
            "libavcodec-dev libavutil-dev pkg-config",
            file=sys.stderr,
        )
        return 0
    figures, goals = run(arguments.rounds, arguments.frames)
    report("decode", figures, goals, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
