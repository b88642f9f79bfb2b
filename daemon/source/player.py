"""Plays a video into a stream: decoded frame to slot, when it is due, until its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcpd.daemon.source.pace import Pace, Timeline
from mcpd.daemon.source.progress import Progress
from mcpd.shm.errors import McpdError
from mcpd.shm.frame import FLAG_KEYFRAME

if TYPE_CHECKING:
    from mcpd.shm import Client, WriterStream
    from mcpd.shm.picture import Picture
    from mcpd.shm.video import Video

CONNECT_TIMEOUT_S = 5.0
FORMATS = ("i420", "nv12", "rgb24", "bgr24")
DRAIN_TIMEOUT_S = 10.0
"""How long a source that is done waits for lossless readers to take their last frames."""
POLL_S = 0.02
"""How often readers that come and go are counted, before the first frame and after the last."""
NOMINAL_FPS = 25.0
"""Of a source that does not tell its frame rate, and gives frames no time stamps."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to play, where to, and how.

    Attributes:
        source: File or URL.
        stream: Name of the stream to make.
        socket: Of the daemon, "" for the default.
        max_speed: Not at the pace of its time stamps. A live source has its own pace anyway.
        plays: How many times; 0: again and again.
        format: "auto" for the decoder's own, or one of FORMATS.
        wait_readers: How many must be attached before the first frame.
    """

    source: str
    stream: str
    socket: str = ""
    max_speed: bool = False
    plays: int = 1
    format: str = "auto"
    slots: int = 8
    wait_readers: int = 0


class Player:
    """Plays one source. Used once, from one thread.

    Args:
        settings: What, where to and how.
        progress: Told of every frame.
    """

    def __init__(self, settings: Settings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._counts = progress.counts
        self._pace: Pace | None = None
        self._timeline = Timeline(round(1e9 / NOMINAL_FPS))

    def play(self, on_daemon_gone: Callable[[], None]) -> None:
        """Plays to the end: returns when the last frame is out and lossless readers have it.

        Args:
            on_daemon_gone: Called on another thread as soon as the daemon is, even while this one
                is deep in a decoder or a wait.

        Raises:
            DaemonUnavailable: No daemon answers.
            McpdError: The source cannot be opened or is damaged, or the stream cannot be made. What
                was decoded before the damage has been published.
        """
        import numpy  # noqa: F401  # now, not while the first frame of a camera waits for it

        from mcpd.shm.client import Client
        from mcpd.shm.paths import open_socket, resolve_socket
        from mcpd.shm.video import open_video

        settings = self._settings
        sock = open_socket(resolve_socket(settings.socket or None), CONNECT_TIMEOUT_S)
        with (
            Client.from_socket(
                sock, name="mcpd-source", on_closed=lambda _error: on_daemon_gone()
            ) as client,
            open_video(settings.source) as video,
        ):
            self._prepare(video)
            with self._create_stream(client, video) as stream:
                self._wait_for_readers(stream)
                self._progress.begin()
                try:
                    self._play_all(video, stream)
                except McpdError:
                    self._finish(stream)
                    raise
                self._finish(stream)

    def _prepare(self, video: Video) -> None:
        """Takes over what the opened source tells of itself."""
        settings = self._settings
        self._timeline = Timeline(round(1e9 / (video.fps or NOMINAL_FPS)))
        if not settings.max_speed and not video.live:
            self._pace = Pace()
        self._counts.total_frames = video.frames * settings.plays

    def _create_stream(self, client: Client, video: Video) -> WriterStream:
        settings = self._settings
        own = settings.format == "auto"
        return client.create_stream(
            settings.stream,
            width=video.width,
            height=video.height,
            format=video.format if own else settings.format,
            matrix=video.matrix,
            range=video.range,
            rotation=video.rotation,
            slots=settings.slots,
            holds=1,  # the decoder's reference frames are its own, not slots
        )

    def _wait_for_readers(self, stream: WriterStream) -> None:
        wanted = self._settings.wait_readers
        while len(stream.readers) < wanted:
            self._counts.readers = len(stream.readers)
            self._progress.waiting(wanted)
            time.sleep(POLL_S)

    def _play_all(self, video: Video, stream: WriterStream) -> None:
        while True:
            for picture in video:
                self._publish(picture, stream)
            self._counts.loops += 1
            if self._counts.loops == self._settings.plays:
                return
            video.rewind()
            self._timeline.restart()

    def _publish(self, picture: Picture, stream: WriterStream) -> None:
        """Writes one frame into a slot, and publishes it when it is due."""
        decoded_ns = time.monotonic_ns()
        counts = self._counts
        with stream.acquire() as slot:
            picture.write(slot)
            slot.capture_ns = decoded_ns
            slot.pts_ns = counts.pts_ns = self._timeline.stamp(picture.pts_ns)
            if picture.frame.key_frame:
                slot.flags = FLAG_KEYFRAME
            if self._pace is not None:
                _sleep_until(self._pace.due_ns(slot.pts_ns, time.monotonic_ns()))
        counts.frames += 1
        counts.nbytes += slot.nbytes
        counts.readers = len(stream.readers)
        self._progress.tick()

    def _finish(self, stream: WriterStream) -> None:
        """Ends the stream and waits, bounded, until lossless readers have taken what is left."""
        stream.end()
        self._counts.blocked_ns = stream.stats()["blocked_ns"]
        deadline_ns = time.monotonic_ns() + round(DRAIN_TIMEOUT_S * 1e9)
        while "lossless" in stream.readers.values() and time.monotonic_ns() < deadline_ns:
            time.sleep(POLL_S)


def _sleep_until(due_ns: int) -> None:
    left_ns = due_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
