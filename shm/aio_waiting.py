"""How the asyncio client waits: for a stream's descriptor, for a thread, for what is opened."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from mcpd.shm.errors import StreamClosed, TimedOut, WouldBlock
from mcpd.shm.slot import Slot
from mcpd.shm.stream_end import check_timeout
from mcpd.shm.transport import close_fds

T = TypeVar("T")


class Opening(Generic[T]):
    """Something about to be opened: await it, or enter it with `async with`, which closes it."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._value: T

    def __await__(self) -> Generator[Any, None, T]:
        return self._make().__await__()

    async def __aenter__(self) -> T:
        self._value = await self._make()
        return self._value

    async def __aexit__(self, *failure: Any) -> None:
        value = self._value
        if isinstance(value, Slot):
            value.__exit__(*failure)
        else:
            await value.close()  # type: ignore[attr-defined]


class Armed(Protocol):
    """A stream's end, as far as waiting for it goes."""

    @property
    def look_again_s(self) -> float | None: ...
    def watch(self) -> tuple[int, ...]: ...
    def arm(self) -> bool: ...
    def disarm(self) -> None: ...


class Waiting:
    """Tries something that would block until it does not, waiting for a stream's descriptor.

    Duplicates of its descriptors are watched: the stream's own are closed, and forgotten by the
    loop's epoll, when the session ends. `end` may give another stream's end each time.
    """

    def __init__(self, end: Callable[[], Armed]) -> None:
        self._end = end
        self._lock = asyncio.Lock()  # one waiter at a time is armed

    async def attempt(self, take: Callable[[], T], timeout_s: float | None, what: str) -> T:
        """What `take` returns once it no longer raises WouldBlock.

        Raises:
            WouldBlock: At once, with timeout_s 0.
            TimedOut: `what` did not happen in time.
            InvalidRequest: timeout_s is below 0, or not a number.
        """
        try:
            return take()
        except WouldBlock:
            if timeout_s == 0:
                raise
        check_timeout(timeout_s)
        try:
            async with asyncio.timeout(timeout_s), self._lock:
                while True:
                    try:
                        return take()
                    except WouldBlock:
                        await self._readable()
        except TimeoutError:
            raise TimedOut(f"{what} in {timeout_s} s") from None

    async def _readable(self) -> None:
        end = self._end()
        with suppress(StreamClosed):  # take() says so, or looks at another end
            fds = end.watch()
            try:
                if not end.arm():
                    await _until_readable(fds, end.look_again_s)
                    return
            finally:
                close_fds(fds)
                with suppress(StreamClosed):
                    end.disarm()
        await asyncio.sleep(0)


async def _until_readable(fds: tuple[int, ...], most_s: float | None) -> None:
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    timer = loop.call_later(most_s, wake) if most_s is not None else None
    for fd in fds:
        loop.add_reader(fd, wake)
    try:
        await woken
    finally:
        for fd in fds:
            loop.remove_reader(fd)
        if timer is not None:
            timer.cancel()


def in_loop(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., None] | None
) -> Callable[..., None] | None:
    """A callback that other threads may call and that runs in the loop; not if that has ended."""
    if callback is None:
        return None

    def call(*values: object) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(callback, *values)

    return call


async def in_thread(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Runs what blocks in the loop's pool. If the await is cancelled, what it made is undone."""
    handed: Future[T] = Future()

    def make() -> None:
        try:
            made = work()
        except BaseException as error:
            if handed.set_running_or_notify_cancel():
                handed.set_exception(error)
            return
        if handed.set_running_or_notify_cancel():
            handed.set_result(made)
        else:
            undo(made)

    def discard(done: Future[T]) -> None:
        # Not in the loop's pool: that takes nothing more while the loop ends.
        if done.exception() is None:
            threading.Thread(target=undo, args=(done.result(),)).start()

    asyncio.get_running_loop().run_in_executor(None, make)
    try:
        return await asyncio.wrap_future(handed)
    except asyncio.CancelledError:
        if not handed.cancel():
            handed.add_done_callback(discard)  # it came in the last moment
        raise


async def to_the_end(work: Callable[[], T]) -> T:
    """Runs what blocks in the loop's pool; an await that is cancelled is so once it is over."""
    # Not a task: the end of the loop would cancel that.
    running = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        running.exception()  # else it counts as never looked at
        raise cancelled
    return running.result()
