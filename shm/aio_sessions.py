"""How the asyncio client asks the daemon, in whatever session there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from mcpd.shm.connection import REQUEST_TIMEOUT_S, Connection
from mcpd.shm.errors import DaemonUnavailable, McpdError, TimedOut
from mcpd.shm.messages import Message
from mcpd.shm.replies import Answer
from mcpd.shm.sessions import Sessions

T = TypeVar("T")


async def run(
    sessions: Sessions,
    work: Callable[[Connection], Awaitable[T]],
    timeout_s: float | None = REQUEST_TIMEOUT_S,
) -> T:
    """As Sessions.run."""
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    while True:
        future = sessions.session()
        if not future.done():
            left_s = None if deadline is None else max(0.0, deadline - loop.time())
            try:
                async with asyncio.timeout(left_s):
                    await asyncio.wrap_future(future)
            except TimeoutError:
                if sessions.keeper is not None:
                    raise sessions.keeper.unavailable() from None
                raise
        session = future.result()
        try:
            return await work(session)
        except DaemonUnavailable:
            if sessions.keeper is None or not session.lost or session.inherited:
                raise


async def ask(
    session: Connection,
    message: Message,
    timeout_s: float = REQUEST_TIMEOUT_S,
    fds: Sequence[int] = (),
) -> Answer:
    """As Connection.request."""
    future = session.submit(message, fds)
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(future)
    except BaseException as error:
        if not isinstance(error, McpdError):
            session.abandon(message, future)
        if isinstance(error, TimeoutError):
            kind = type(message).__struct_config__.tag
            text = f"no reply to {kind} from the daemon in {timeout_s} s"
            raise TimedOut(text) from None
        raise
