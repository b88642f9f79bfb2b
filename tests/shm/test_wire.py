"""The control protocol's bytes: what may travel, and what is refused how."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.shm import messages
from mcpd.shm.errors import InvalidRequest, LimitExceeded, ProtocolError
from mcpd.shm.messages import MAX_MESSAGE_NBYTES, REQUESTS, Hello, List, Message, Reply
from mcpd.shm.wire import HEADER_NBYTES, Decoder, body_length, encode, read_envelope

decoder = Decoder(REQUESTS)


def pack(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def test_every_message_comes_back_as_it_was_sent() -> None:
    spec = messages.StreamSpec(slots=4, slot_nbytes=4096, format="i420", width=2, height=2)
    sent: list[Message] = [
        Reply(id=1, result={"a": [1, "x", None, b"\0"]}, fds=2),
        messages.ErrorReply(id=2, code="limit", message="too much", hint="less"),
        Hello(id=3, versions=[1, 2], client="me"),
        messages.CreateStream(id=4, name="cam0", spec=spec),
        messages.SealStream(id=5, stream=7),
        messages.CloseStream(id=6, stream=7),
        messages.AttachReader(id=7, stream="cam0", policy="lossless", max_pins=3),
        messages.OpenResults(id=8, stream="cam0", model="m", once=True, wait_s=1.5),
        messages.RunOnce(id=9, reader=4, trace_id=bytes(16)),
        messages.DetachReader(id=10, reader=4),
        messages.ReaderJoin(id=11, stream=1, reader=2, max_pins=2, policy="latest", fds=2),
        messages.ReaderLeave(stream=1, reader=2, pins="keep"),
        messages.StreamEndedNote(stream=1, reason="closed"),
        messages.Serve(id=12, binding=1, stream="s", results_name="s@m", frames="latest"),
        messages.Unserve(id=13, binding=1),
        messages.Run(binding=1),
        messages.WorkerState(state="ready", details={"engine": "onnx"}),
        messages.WorkerStats(frames=1, errors=0, busy_ns=5, prepare_ns=1, infer_ns=3, decode_ns=1),
        messages.Status(id=14),
        List(id=15, what="streams", cursor="9"),
        messages.LoadModels(id=16),
        messages.Stop(id=17),
    ]
    everything = Decoder(tuple({type(message) for message in sent}))
    for message in sent:
        data = encode(message)
        assert body_length(data) == len(data) - HEADER_NBYTES
        assert everything.decode(data[HEADER_NBYTES:]) == message


def test_every_message_type_has_a_name_of_its_own() -> None:
    types = {*REQUESTS, *messages.WORKER_MESSAGES, *messages.TO_CLIENT}
    assert len({kind.__struct_config__.tag for kind in types}) == len(types)


def test_message_longer_than_the_limit_is_not_encoded() -> None:
    room = MAX_MESSAGE_NBYTES - len(pack({"type": "list", "what": "", "id": 1})) - 2
    fits = encode(List(id=1, what="x" * room))
    assert len(fits) == HEADER_NBYTES + MAX_MESSAGE_NBYTES
    with pytest.raises(LimitExceeded, match="65537 bytes, the limit is 65536"):
        encode(List(id=1, what="x" * (room + 1)))


def test_number_of_more_than_64_bits_is_not_encoded() -> None:
    with pytest.raises(InvalidRequest, match="'seal_stream' cannot be encoded"):
        encode(messages.SealStream(id=1, stream=2**64))


@pytest.mark.parametrize("length", [0, MAX_MESSAGE_NBYTES + 1, 2**32 - 1])
def test_length_out_of_bounds_is_a_protocol_error(length: int) -> None:
    with pytest.raises(ProtocolError, match=str(length)):
        body_length(length.to_bytes(4, "little"))


def test_unknown_type_still_yields_its_id() -> None:
    body = pack({"type": "make_coffee", "id": 5, "sugar": 2})
    assert read_envelope(body).id == 5
    with pytest.raises(InvalidRequest, match="unknown message type 'make_coffee'") as caught:
        decoder.decode(body)
    assert "create_stream" in caught.value.hint


def test_type_of_the_other_direction_is_unknown() -> None:
    with pytest.raises(InvalidRequest, match="unknown message type 'reply'"):
        decoder.decode(pack({"type": "reply", "id": 1, "result": {}}))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"type": "list", "id": 1, "what": 4}, "got `int` - at `$.what` (value 4)"),
        ({"type": "list", "id": 1}, "missing required field `what`"),
        (
            {"type": "create_stream", "name": "x", "spec": {"slots": "many", "slot_nbytes": 1}},
            "- at `$.spec.slots` (value 'many')",
        ),
        ({"type": "hello", "versions": [1, "a"]}, "- at `$.versions[1]`"),
    ],
)
def test_wrong_field_is_named_with_its_value(message: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decoder.decode(pack(message))
    assert said in caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        b"\x93\x01\x02\x03",
        b"GET / HTTP/1.1",
        pack({}),
        pack({"type": 5}),
        pack({"type": "list", "id": -1}),
        pack({"type": "list", "id": 1, "fds": 9}),
        pack({"type": "list", "id": "one"}),
        b"\x81\xa1z" + b"\x91" * 60000,
        b"\xdf\xff\xff\xff\xff",
    ],
)
def test_what_is_no_message_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_envelope(body)
    with pytest.raises(ProtocolError):
        decoder.decode(body)


def test_unknown_fields_are_ignored() -> None:
    body = pack({"type": "list", "id": 1, "what": "streams", "colour": ["red"]})
    assert decoder.decode(body) == List(id=1, what="streams")


@given(st.binary(max_size=300))
def test_any_bytes_either_decode_or_raise_our_errors(body: bytes) -> None:
    try:
        message = decoder.decode(body)
    except (ProtocolError, InvalidRequest):
        return
    assert isinstance(message, REQUESTS)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
tags = st.sampled_from([str(kind.__struct_config__.tag) for kind in REQUESTS]) | st.text()
fields = st.sampled_from(["id", "fds", "name", "spec", "versions", "stream", "what", "wait_s"])


@given(tags, st.dictionaries(fields, values))
def test_any_map_either_decodes_or_raises_our_errors(tag: str, rest: dict[str, Any]) -> None:
    body = pack({"type": tag, **rest})
    try:
        message = decoder.decode(body)
    except (ProtocolError, InvalidRequest):
        return
    assert decoder.decode(encode(message)[HEADER_NBYTES:]) == message
