"""Video and pictures through PyAV: decoded frames, and their planes straight into slots.

Needs the extra `video`; PyAV is imported when something is opened. Formats that a slot can carry
are copied plane by plane, row by row; others go through swscale once, to i420, or to rgb24 where a
side is odd.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from mcpd.shm.errors import InvalidRequest, McpdError, NotFound, NotPermitted, TimedOut
from mcpd.shm.formats import MAX_SIDE

if TYPE_CHECKING:
    import av
    import av.container
    import av.video

    from mcpd.shm.frame import Slot

_FORMATS = {
    "yuv420p": "i420",
    "yuvj420p": "i420",
    "nv12": "nv12",
    "rgb24": "rgb24",
    "bgr24": "bgr24",
    "rgba": "rgba",
    "bgra": "bgra",
    "gray": "gray8",
    "yuyv422": "yuyv422",
}
_AV_FORMATS = {ours: theirs for theirs, ours in _FORMATS.items() if theirs != "yuvj420p"}
_EVEN = frozenset({"i420", "nv12", "yuyv422"})

# AVColorSpace: 1 BT.709, 4 FCC, 5 and 6 BT.601 of both line counts, 7 SMPTE 240M (near BT.709).
# BT.2020 has no name of its own here; BT.709 is the nearer one.
_MATRICES = {1: "bt709", 4: "bt601", 5: "bt601", 6: "bt601", 7: "bt709", 9: "bt709", 10: "bt709"}
_RANGES = {1: "limited", 2: "full"}
_SWS_MATRICES = {"bt601": 5, "bt709": 1}
_SWS_RANGES = {"limited": 1, "full": 2}
_HD_HEIGHT = 720

_LIVE = re.compile(r"(rtsps?|rtmps?|rtp|udp|srt|tcp)://|/dev/video\d")
_CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")
OPEN_TIMEOUT_S = 20.0


class Picture:
    """One decoded frame.

    Attributes:
        frame: PyAV's.
        pts_ns: When it is to be shown, in the source's time; None if it does not tell.
    """

    def __init__(self, frame: av.VideoFrame) -> None:
        self.frame = frame
        self.pts_ns: int | None = None
        if frame.pts is not None and frame.time_base is not None:
            base = frame.time_base
            self.pts_ns = frame.pts * base.numerator * 1_000_000_000 // base.denominator

    @property
    def width(self) -> int:
        """Pixels across."""
        return self.frame.width

    @property
    def height(self) -> int:
        """Pixels down."""
        return self.frame.height

    def write(self, slot: Slot) -> None:
        """Writes the planes into a slot; see write_frame."""
        write_frame(self.frame, slot)


class Video:
    """An opened file, picture or camera. A context manager that closes; an iterator of Pictures.

    The first frame is decoded when it is opened. Used from one thread at a time.

    Attributes:
        source: As given, without a password.
        live: Whether it has a pace of its own: a camera, a network stream.
        width: Of the first frame, in pixels; likewise height.
        format: What slots for its frames are best made with.
        matrix: "bt601" or "bt709"; where it does not tell, by the height as players do.
        range: "limited" or "full".
        rotation: Degrees clockwise that show it upright.
        fps: Nominal, 0.0 if it does not tell.
        frames: How many there should be, 0 if it does not tell.
        frames_read: How many came so far.
        damaged: Packets that the decoder could not make anything of.
    """

    def __init__(self, source: str, options: Mapping[str, str], timeout_s: float) -> None:
        self._av = _import_av()
        self._given = source
        self._options = dict(options)
        self._timeout_s = timeout_s
        self.source = _CREDENTIALS.sub("", source)
        self.live = _LIVE.match(source) is not None
        self.frames_read = 0
        self.damaged = 0
        self._first: av.VideoFrame | None = None
        self._open()
        try:
            self._describe()
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Picture]:
        """Frames up to the end.

        Raises:
            InvalidRequest: A file that ends before its end, after the frames it has.
            McpdError: A source that broke off.
        """
        if self._first is not None:
            first, self._first = self._first, None
            yield self._picture(first)
        for frame in self._decoder:
            yield self._picture(frame)

    def rewind(self) -> None:
        """Back to the first frame, by opening the source again.

        Raises:
            As open_video.
        """
        self.close()
        self.frames_read = 0
        self._open()

    def close(self) -> None:
        """Closes the source. Idempotent."""
        self._decoder.close()
        self._container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        try:
            self._container: av.container.InputContainer = self._av.open(
                self._given, options=self._options, timeout=(self._timeout_s, self._timeout_s)
            )
        except (self._av.error.FFmpegError, OSError, ValueError) as error:
            raise self._failure("cannot be opened", error) from error
        self._decoder = self._decode()
        try:
            self._first = next(self._decoder, None)
        except BaseException:
            self._container.close()
            raise
        if self._first is None:
            self._container.close()
            raise InvalidRequest(f"{self.source}: no picture could be decoded in it")

    def _describe(self) -> None:
        frame = self._first
        if frame is None:
            return
        stream = self._container.streams.video[0]
        self.width, self.height = frame.width, frame.height
        if max(frame.width, frame.height) > MAX_SIDE:
            raise InvalidRequest(
                f"{self.source}: {frame.width}x{frame.height} pixels, a side may have {MAX_SIDE}"
            )
        self.format = frame_format(frame)
        self.matrix = frame_matrix(frame)
        self.range = frame_range(frame)
        # PyAV tells the angle counter-clockwise, in -180..180.
        turn = -round(frame.rotation) % 360
        self.rotation = turn if turn in (90, 180, 270) else 0
        rate = stream.average_rate or stream.guessed_rate
        self.fps = float(rate) if rate else 0.0
        self.frames = 0 if self.live else stream.frames
        if not self.frames and not self.live and stream.duration and stream.time_base:
            self.frames = round(float(stream.duration * stream.time_base) * self.fps)

    def _decode(self) -> Generator[av.VideoFrame]:
        """Every frame that can be decoded; then, if that is not all, the error that says so."""
        container = self._container
        if not container.streams.video:
            raise InvalidRequest(f"{self.source}: there is no video in it")
        stream = container.streams.video[0]
        stream.thread_type = "SLICE" if self.live else "AUTO"  # threads by frame add delay
        end_ns = start_ns = None
        broken: Exception | None = None
        packets = container.demux(stream)
        while True:
            try:
                packet = next(packets, None)
            except (self._av.error.FFmpegError, OSError) as error:
                broken = error
                packet = None
            try:
                decoded = stream.decode(packet)
            except self._av.error.EOFError:
                break
            except self._av.error.FFmpegError:
                self.damaged += 1
                decoded = []
            for frame in decoded:
                end_ns = Picture(frame).pts_ns
                start_ns = end_ns if start_ns is None else start_ns
                yield frame
            if packet is None or (packet.dts is None and packet.size == 0):  # the decoder is empty
                break
        if self.live or broken is not None:
            if broken is not None:
                raise self._failure(f"broke off after {self.frames_read} frames", broken)
            return
        self._check_complete(stream, start_ns, end_ns)

    def _check_complete(
        self, stream: av.video.VideoStream, start_ns: int | None, end_ns: int | None
    ) -> None:
        """Raises if the file promises clearly more than was decoded: by count and by time."""
        duration_s = 0.0
        if stream.duration and stream.time_base:
            duration_s = float(stream.duration * stream.time_base)
        elif self._container.duration and len(self._container.streams) == 1:
            duration_s = self._container.duration / 1e6  # with others, it is that of the longest
        if not duration_s or start_ns is None or end_ns is None:
            return
        read_s = (end_ns - start_ns) / 1e9
        complete = stream.frames > 0 and self.frames_read >= stream.frames
        # Encoders round, edit lists cut: half a second or a few frames less is an ordinary file.
        if not complete and duration_s - read_s > max(0.5, 4 * read_s / max(1, self.frames_read)):
            of = f" of {stream.frames}" if stream.frames else ""
            raise InvalidRequest(
                f"{self.source}: truncated: {self.frames_read} frames{of} were read, "
                f"{read_s:.1f} s of {duration_s:.1f} s",
                "Copy or download the file again.",
            )

    def _picture(self, frame: av.VideoFrame) -> Picture:
        self.frames_read += 1
        return Picture(frame)

    def _failure(self, what: str, error: Exception) -> McpdError:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"{self.source} {what}: {reason}"
        if isinstance(error, FileNotFoundError):
            return NotFound(message, "Check the path.")
        if isinstance(error, PermissionError):
            return NotPermitted(message)
        if isinstance(error, TimeoutError):
            return TimedOut(message, "Is the camera on, and its address right?")
        if isinstance(error, ConnectionError):
            return NotFound(message, "Is the camera on, and its address right?")
        return InvalidRequest(
            message, "It must be a video, a picture or a stream that ffmpeg reads."
        )


def open_video(
    source: str, *, options: Mapping[str, str] | None = None, timeout_s: float = OPEN_TIMEOUT_S
) -> Video:
    """Opens a file, picture or URL and decodes its first frame.

    Args:
        source: Path, or a URL such as rtsp://camera/stream.
        options: FFmpeg's, such as {"rtsp_transport": "udp"}; RTSP goes over TCP otherwise.
        timeout_s: For opening, and for each read.

    Raises:
        NotFound: No such file, or nobody answers there; or PyAV is not installed.
        InvalidRequest: Not a video or picture, or truncated so that no frame is left.
        TimedOut: It does not answer.
    """
    defaults = {"rtsp_transport": "tcp"} if source.startswith("rtsp") else {}
    return Video(source, {**defaults, **(options or {})}, timeout_s)


def frame_format(frame: av.VideoFrame) -> str:
    """The format in which a slot carries this frame at the least cost."""
    own = _FORMATS.get(frame.format.name, "i420")
    odd_width, odd_height = frame.width % 2, frame.height % 2
    if own in _EVEN and (odd_width or (odd_height and own != "yuyv422")):
        return "rgb24"
    return own


def frame_matrix(frame: av.VideoFrame) -> str:
    """Its colour matrix; if it does not tell, BT.709 from 720 rows on, as players assume."""
    known = _MATRICES.get(int(frame.colorspace))
    return known or ("bt709" if frame.height >= _HD_HEIGHT else "bt601")


def frame_range(frame: av.VideoFrame) -> str:
    """Its range of values."""
    if frame.format.name.startswith("yuvj"):
        return "full"
    return _RANGES.get(int(frame.color_range), "limited")


def write_frame(frame: av.VideoFrame, slot: Slot) -> None:
    """Copies a decoded frame's planes into a slot, with nothing in between.

    A frame of another size or format than the slot's is first converted by swscale.

    Raises:
        InvalidRequest: The slot has no pixel format.
    """
    import numpy as np

    description = slot.description
    if description is None or not description.planes:
        raise InvalidRequest("slot holds no picture", "Create the stream with a pixel format.")
    wanted = description.format
    same_size = (frame.width, frame.height) == (description.width, description.height)
    if not same_size or _FORMATS.get(frame.format.name) != wanted or _is_flipped(frame):
        frame = frame.reformat(
            description.width,
            description.height,
            _AV_FORMATS[wanted],
            src_colorspace=_SWS_MATRICES[frame_matrix(frame)],
            dst_colorspace=_SWS_MATRICES[description.matrix or "bt709"],
            src_color_range=_SWS_RANGES[frame_range(frame)],
            dst_color_range=_SWS_RANGES[description.range or "limited"],
        )
    for source, plane, target in zip(frame.planes, description.planes, slot.planes, strict=True):
        strides = (source.line_size, *plane.shape[2:], 1)
        target[...] = np.ndarray(plane.shape, np.uint8, memoryview(source), 0, strides)


def _is_flipped(frame: av.VideoFrame) -> bool:
    """Whether rows are stored from the bottom up, which swscale turns round."""
    return any(plane.line_size <= 0 for plane in frame.planes)


def _import_av() -> Any:
    try:
        import av
        import av.error
    except ImportError as error:
        raise NotFound(
            f"PyAV is not there to read video with ({error})",
            'Install it: pip install "mcpd-inference[video]"',
        ) from error
    return av
