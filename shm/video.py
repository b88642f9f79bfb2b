"""Video and pictures through PyAV: files and cameras, opened, sought in and decoded.

Needs the extra `video`; PyAV is imported when something is opened. Of a file on disk only formats
that hold the pictures themselves are read. mcpd.shm.picture has what becomes of a frame.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from mcpd.shm.errors import InvalidRequest, McpdError, NotFound, NotPermitted, TimedOut
from mcpd.shm.formats import MAX_SIDE
from mcpd.shm.picture import Picture, frame_format, frame_matrix, frame_range

if TYPE_CHECKING:
    import av
    import av.container
    import av.video

_SELF_CONTAINED = ",".join(
    (
        *("3gp", "apng", "asf", "avi", "av1", "dnxhd", "dv", "flv", "gif", "h264", "hevc"),
        *("image2", "ivf", "m4v", "matroska", "mjpeg", "mov", "mp4", "mpeg", "mpegts"),
        *("mpegvideo", "mxf", "nut", "obu", "ogg", "rm", "vc1", "vvc", "webm", "wtv"),
        *("yuv4mpegpipe", "bmp_pipe", "dpx_pipe", "exr_pipe", "gif_pipe", "hdr_pipe"),
        *("j2k_pipe", "jpeg_pipe", "jpegls_pipe", "jpegxl_anim", "jpegxl_pipe", "pam_pipe"),
        *("pbm_pipe", "pcx_pipe", "pgm_pipe", "png_pipe", "ppm_pipe", "psd_pipe", "qoi_pipe"),
        *("sgi_pipe", "tiff_pipe", "webp_pipe"),
    )
)
"""FFmpeg's formats whose files hold the pictures themselves. Playlists are left out: they have
other files and addresses opened, which whoever allowed this file need not have allowed; and so is
what makes a picture of any text."""

_SEEK_MARGINS_S = (0.0, 2.0, 10.0)
"""How far before the wanted time a seek aims: an index may lead to a key frame behind it."""
_MAX_SEEK_S = 1e9

_LIVE = re.compile(r"(rtsps?|rtmps?|rtp|udp|srt|tcp)://|/dev/video\d")
_CREDENTIALS = re.compile(r"(?<=://)[^/?#]*@")
OPEN_TIMEOUT_S = 20.0


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
        if os.path.exists(source):
            # Absolute, because FFmpeg takes what is before a colon for a protocol.
            self._given = os.path.abspath(source)
            self._options.setdefault("format_whitelist", _SELF_CONTAINED)
        self._timeout_s = timeout_s
        self.source = _CREDENTIALS.sub("", source)
        self.live = _LIVE.match(source) is not None
        self.frames_read = 0
        self.damaged = 0
        self._first: av.VideoFrame | None = None
        self._start_ns: int | None = None
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

    def skip_to(self, from_s: float) -> None:
        """Has the iteration begin with the first frame that is shown `from_s` after the first one.

        A file is sought in and decoded from the key frame before; where that cannot be, it is
        decoded from its beginning. Called before anything was read.

        Raises:
            As the iteration.
        """
        first = self._first
        if first is None or from_s <= 0:
            return
        start_ns = Picture(first).pts_ns
        if start_ns is None or not self._seek_before(start_ns, from_s):
            self.rewind()
        step_ns = 1e9 / (self.fps or 25.0)
        frame, self._first = self._first, None
        for number in itertools.count():
            if frame is None:
                return
            pts_ns = Picture(frame).pts_ns
            since_ns = number * step_ns if pts_ns is None else pts_ns - (start_ns or 0)
            if since_ns >= from_s * 1e9:
                self._first = frame
                return
            frame = next(self._decoder, None)

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

    def _seek_before(self, start_ns: int, from_s: float) -> bool:
        """Whether the next frame is now one shown at `from_s` or before, after a seek."""
        stream = self._container.streams.video[0]
        if self.live or not stream.time_base:
            return False
        for margin_s in _SEEK_MARGINS_S:
            wanted_ns = start_ns + round(min(from_s - margin_s, _MAX_SEEK_S) * 1e9)
            if wanted_ns <= start_ns:
                return False  # nothing is gained
            try:
                self._decoder.close()
                self._container.seek(
                    int(wanted_ns / (stream.time_base * 1_000_000_000)), stream=stream
                )
                self._decoder = self._decode()
                self._first = next(self._decoder, None)
            except (self._av.error.FFmpegError, OSError):
                return False
            reached_ns = None if self._first is None else Picture(self._first).pts_ns
            if reached_ns is not None and reached_ns <= start_ns + from_s * 1e9:
                return True
        return False

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
        if not stream.codec_context.is_open:
            stream.thread_type = "SLICE" if self.live else "AUTO"  # threads by frame add delay
        end_ns: int | None = None
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
                self._start_ns = end_ns if self._start_ns is None else self._start_ns
                yield frame
            if packet is None or (packet.dts is None and packet.size == 0):  # the decoder is empty
                break
        if self.live or broken is not None:
            if broken is not None:
                raise self._failure(f"broke off after {self.frames_read} frames", broken)
            return
        self._check_complete(stream, self._start_ns, end_ns)

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
        # FFmpeg's ExitError is what interrupting it gives: PyAV does when the time is up.
        if isinstance(error, (TimeoutError, self._av.error.ExitError)):
            return TimedOut(message, "Is the camera on, and its address right?")
        if isinstance(error, ConnectionError):
            return NotFound(message, "Is the camera on, and its address right?")
        return InvalidRequest(
            message,
            "It must be a video, a picture or a stream that ffmpeg reads, and no playlist on disk.",
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
