"""The answers that are the same whoever asks: made without the MCP SDK, word for word as it would.

A connection opens in one of two eras: by the handshake (`initialize`), or with a request that
carries the envelope of 2026-07-28 in `_meta`. Only requests that are plainly well-formed are
answered here; whatever else comes is left to the SDK's server, so that its word is the only one on
what is wrong. mcpd.mcp_adapter.recorded holds the answers, as recorded from that server.
"""

from __future__ import annotations

from mcpd.mcp_adapter import recorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]

OPENING, HANDSHAKE, MODERN, FOREIGN = "opening", "handshake", "modern", "foreign"
"""Eras of a connection: none yet; the two; and one that only the SDK's server can judge."""

_META = "io.modelcontextprotocol/"


def era_opened_by(message: Message) -> str:
    """The era of a connection whose first message this is."""
    if request_id(message) is None:
        return FOREIGN
    if message["method"] == "initialize":
        return HANDSHAKE if _initializes(message.get("params")) else FOREIGN
    return MODERN if _enveloped(message.get("params")) else FOREIGN


def answer(era: str, message: Message) -> bytes | None:
    """The line that answers the request; None if the SDK's server must.

    Args:
        era: Of its connection. `initialize` is answered only as the message that opens one.
        message: An object with a method.
    """
    identity, method = request_id(message), message["method"]
    params: Any = message.get("params")
    if identity is None:
        return None
    if era == OPENING and method == "initialize" and _initializes(params):
        version = params["protocolVersion"]
        known = version if version in recorded.HANDSHAKE_VERSIONS else recorded.LATEST_HANDSHAKE
        return _line(identity, recorded.INITIALIZE.replace(recorded.VERSION_MARK, known))
    if era == HANDSHAKE and _bare(params):
        if method == "ping":
            return _line(identity, "{}")
        if method == "tools/list":
            return _line(identity, recorded.TOOLS_HANDSHAKE)
    if era == MODERN and _enveloped(params) and len(params) == 1:
        if method == "server/discover":
            return _line(identity, recorded.DISCOVER)
        if method == "tools/list":
            return _line(identity, recorded.TOOLS_MODERN)
    return None


def error(identity: int | str | None, code: int, words: str) -> bytes:
    """The line with a JSON-RPC error; `words` are plain ASCII."""
    shown = "null" if identity is None else _shown(identity)
    body = f'{{"code":{code},"message":"{words}"}}'
    return f'{{"jsonrpc":"2.0","id":{shown},"error":{body}}}\n'.encode()


def request_id(message: Message) -> int | str | None:
    """The request's id, if it is one that JSON writes in one way only; else None."""
    identity: Any = message.get("id")
    if type(identity) is int:
        return identity if abs(identity) < 1 << 53 else None
    plain = type(identity) is str and identity.isascii() and identity.isprintable()
    if not plain or len(identity) > 128 or '"' in identity or "\\" in identity:
        return None
    return str(identity)


def _line(identity: int | str, result: str) -> bytes:
    return f'{{"jsonrpc":"2.0","id":{_shown(identity)},"result":{result}}}\n'.encode()


def _shown(identity: int | str) -> str:
    return f'"{identity}"' if isinstance(identity, str) else str(identity)


def _bare(params: object) -> bool:
    """No parameters, or none but a progress token, which an answer at once does not need."""
    if params is None:
        return True
    if not isinstance(params, dict) or params.keys() - {"_meta"}:
        return False
    meta = params.get("_meta", {})
    if not isinstance(meta, dict) or meta.keys() - {"progressToken"}:
        return False
    return type(meta.get("progressToken", 0)) in (int, str)


def _initializes(params: object) -> bool:
    return (
        isinstance(params, dict)
        and params.keys() == {"protocolVersion", "capabilities", "clientInfo"}
        and isinstance(params["protocolVersion"], str)
        and _objects(params["capabilities"])
        and _names(params["clientInfo"])
    )


def _enveloped(params: object) -> bool:
    meta = params.get("_meta") if isinstance(params, dict) else None
    return (
        isinstance(meta, dict)
        and meta.get(f"{_META}protocolVersion") == recorded.MODERN_VERSION
        and _objects(meta.get(f"{_META}clientCapabilities"))
        and _names(meta.get(f"{_META}clientInfo", {"name": "", "version": ""}))
        and type(meta.get("progressToken", 0)) in (int, str)
    )


def _objects(capabilities: object) -> bool:
    return isinstance(capabilities, dict) and all(
        isinstance(each, dict) for each in capabilities.values()
    )


def _names(info: object) -> bool:
    """An implementation's name and version, with no more than other texts beside them."""
    return (
        isinstance(info, dict)
        and {"name", "version"} <= info.keys() <= {"name", "version", "title"}
        and all(isinstance(each, str) for each in info.values())
    )
