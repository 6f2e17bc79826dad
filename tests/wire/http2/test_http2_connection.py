# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from pytriton.protocol.http2 import (
    ConnectionTerminated,
    DataReceived,
    GoAwayReceived,
    Http2Connection,
    Http2ErrorCode,
    Http2Limits,
    PingAcknowledged,
    RequestReceived,
    StreamReset,
    TrailersReceived,
    frames,
)
from pytriton.protocol.http2.frames import frame
from tests.wire.http2.frame_client import (
    GRPC_HEADERS,
    RESPONSE_HEAD,
    FrameClient,
    SentFrame,
    data,
    parse_frames,
    ping,
    responding,
    rst_stream,
    setting,
    settings,
    window_update,
)

HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 4, 5


@pytest.fixture
def client() -> FrameClient:
    return FrameClient()


def assert_terminated(client: FrameClient, events, code: Http2ErrorCode) -> None:
    assert isinstance(events[-1], ConnectionTerminated)
    assert events[-1].code is code
    goaway = client.output()[-1]
    assert goaway.kind == frames.GOAWAY
    assert goaway.payload[4:8] == int(code).to_bytes(4, "big")
    assert client.connection.should_close
    assert client.send(ping()) == []


def assert_reset(client: FrameClient, stream_id: int, code: Http2ErrorCode) -> None:
    expected = SentFrame(frames.RST_STREAM, 0, stream_id, int(code).to_bytes(4, "big"))
    assert expected in client.output()
    assert not client.connection.is_open(stream_id)


def test_server_sends_its_settings_first():
    first, second = parse_frames(b"".join(Http2Connection(Http2Limits()).take_output()))

    assert first.kind == frames.SETTINGS
    assert setting(4, 16 << 20) in first.payload
    assert second == SentFrame(
        frames.WINDOW_UPDATE, 0, 0, ((256 << 20) - 65_535).to_bytes(4, "big")
    )


def test_first_frame_must_be_settings():
    client = FrameClient.__new__(FrameClient)
    client.connection = Http2Connection()
    client.now_ns = 0

    events = client.send(frames.PREFACE, ping())

    assert_terminated(client, events, Http2ErrorCode.PROTOCOL_ERROR)


def test_first_settings_must_not_be_an_acknowledgement():
    connection = Http2Connection()

    (event,) = connection.receive(frames.PREFACE + settings(flags=frames.ACK), 0)

    assert isinstance(event, ConnectionTerminated)


def test_settings_are_acknowledged(client):
    assert client.send(settings(setting(99, 7), setting(ENABLE_PUSH, 0))) == []
    assert client.output() == [SentFrame(frames.SETTINGS, frames.ACK, 0, b"")]


@pytest.mark.parametrize(
    "entry,code",
    [
        (setting(ENABLE_PUSH, 2), Http2ErrorCode.PROTOCOL_ERROR),
        (setting(INITIAL_WINDOW_SIZE, 1 << 31), Http2ErrorCode.FLOW_CONTROL_ERROR),
        (setting(MAX_FRAME_SIZE, 16_383), Http2ErrorCode.PROTOCOL_ERROR),
        (setting(MAX_FRAME_SIZE, 1 << 24), Http2ErrorCode.PROTOCOL_ERROR),
        (b"\0\x04\0", Http2ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_wrong_settings_end_the_connection(client, entry, code):
    assert_terminated(client, client.send(settings(entry)), code)


@pytest.mark.parametrize(
    "wrong,code",
    [
        (frame(frames.SETTINGS, frames.ACK, 0, b"123456"), Http2ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 1, b""), Http2ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 0, b"1234567"), Http2ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.PING, 0, 1, b"12345678"), Http2ErrorCode.PROTOCOL_ERROR),
        (frame(frames.GOAWAY, 0, 0, b"1234567"), Http2ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.GOAWAY, 0, 1, bytes(8)), Http2ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PUSH_PROMISE, 0, 1, bytes(8)), Http2ErrorCode.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b"123"), Http2ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"123"), Http2ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.PRIORITY, 0, 0, bytes(5)), Http2ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PRIORITY, 0, 1, bytes(4)), Http2ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.CONTINUATION, frames.END_HEADERS, 1, b""), Http2ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 0, b"\x82"), Http2ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 2, b"\x82"), Http2ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xbe"), Http2ErrorCode.COMPRESSION_ERROR),
        (frame(frames.HEADERS, 0x24, 1, bytes(4)), Http2ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.HEADERS, 0x0C, 1, b"\x09\x82"), Http2ErrorCode.PROTOCOL_ERROR),
        (window_update(0, 0), Http2ErrorCode.PROTOCOL_ERROR),
        (window_update(0, frames.MAX_WINDOW), Http2ErrorCode.FLOW_CONTROL_ERROR),
        (data(0, b"x"), Http2ErrorCode.PROTOCOL_ERROR),
        (data(1, b"x"), Http2ErrorCode.PROTOCOL_ERROR),
        (data(2, b"x"), Http2ErrorCode.PROTOCOL_ERROR),
        (rst_stream(1), Http2ErrorCode.PROTOCOL_ERROR),
        (rst_stream(0), Http2ErrorCode.PROTOCOL_ERROR),
        (window_update(1, 1), Http2ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_wrong_frame_ends_the_connection(client, wrong, code):
    assert_terminated(client, client.send(wrong), code)


def test_unary_request_gives_its_head_and_its_data(client):
    (event,) = client.send(client.headers(1), data(1, b"hello", end_stream=True))
    head, body = [*client.send(client.headers(3)), *client.send(data(3, b"you", end_stream=True))]

    assert isinstance(event, RequestReceived)
    assert (event.stream_id, event.end_stream, event.body) == (1, True, b"hello")
    assert event.head.path == head.head.path == dict(GRPC_HEADERS)[":path"]
    assert (head.stream_id, head.end_stream) == (3, False)
    assert body == DataReceived(3, b"you", end_stream=True)


def test_request_may_have_no_body(client):
    (event,) = client.send(client.headers(1, end_stream=True))

    assert event.end_stream


def test_headers_may_be_continued_padded_and_prioritised(client):
    block = client.block()
    first = frame(
        frames.HEADERS,
        frames.PADDED | frames.PRIORITY_FIELDS,
        1,
        bytes((3,)) + bytes(5) + block[:5] + bytes(3),
    )
    middle = frame(frames.CONTINUATION, 0, 1, block[5:9])

    assert client.send(first) == []
    assert client.send(middle) == []
    (event,) = client.send(frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[9:]))

    assert isinstance(event, RequestReceived)


@pytest.mark.parametrize(
    "intruder",
    [ping(), data(1, b""), frame(frames.CONTINUATION, 0, 3, b""), frame(0x77, 0, 1, b"")],
)
def test_nothing_may_come_inside_a_header_block(client, intruder):
    client.send(frame(frames.HEADERS, 0, 1, b""))

    assert_terminated(client, client.send(intruder), Http2ErrorCode.PROTOCOL_ERROR)


def test_request_may_end_with_trailers(client):
    client.open(1)

    events = client.send(data(1, b"x"), client.headers(1, [("x-sum", "1")], end_stream=True))

    assert events == [
        DataReceived(1, b"x", end_stream=False),
        TrailersReceived(1, ((b"x-sum", b"1"),)),
    ]


@pytest.mark.parametrize(
    "headers,end_stream", [([("x", "1")], False), ([(":path", "/")], True), ([("X", "1")], True)]
)
def test_wrong_trailers_reset_the_stream(client, headers, end_stream):
    client.open(1)

    (event,) = client.send(client.headers(1, headers, end_stream=end_stream))

    assert isinstance(event, StreamReset)
    assert not event.by_peer
    assert_reset(client, 1, Http2ErrorCode.PROTOCOL_ERROR)


def test_malformed_request_is_reset_without_an_event(client):
    assert client.send(client.headers(1, [(":method", "POST")])) == []
    assert_reset(client, 1, Http2ErrorCode.PROTOCOL_ERROR)
    assert len(client.send(client.headers(3))) == 1


@pytest.mark.parametrize("length,body", [("3", b"abcd"), ("5", b"abcd"), ("0", b"abcd")])
def test_body_of_another_length_than_announced_resets_the_stream(client, length, body):
    client.send(client.headers(1, [*GRPC_HEADERS, ("content-length", length)]))

    (event,) = client.send(data(1, body, end_stream=True))

    assert "content-length" in event.message
    assert_reset(client, 1, Http2ErrorCode.PROTOCOL_ERROR)


def test_body_of_the_announced_length_is_taken(client):
    client.send(client.headers(1, [*GRPC_HEADERS, ("content-length", "4")]))

    assert len(client.send(data(1, b"ab"), data(1, b"cd", end_stream=True))) == 1


def test_announced_body_must_come(client):
    client.send(client.headers(1, [*GRPC_HEADERS, ("content-length", "4")], end_stream=True))
    client.send(client.headers(3, [*GRPC_HEADERS, ("content-length", "4")]))
    client.send(client.headers(3, [("x", "1")], end_stream=True))

    resets = [sent.stream_id for sent in client.output() if sent.kind == frames.RST_STREAM]

    assert resets == [1, 3]


def test_data_after_the_end_of_the_request_resets_the_stream(client):
    client.open(1, end_stream=True)

    (event,) = client.send(data(1, b"more"))

    assert event.code == Http2ErrorCode.STREAM_CLOSED
    assert_reset(client, 1, Http2ErrorCode.STREAM_CLOSED)


def test_data_on_a_finished_stream_ends_the_connection(client):
    client.open(1, end_stream=True)
    client.connection.send_response(1, RESPONSE_HEAD, (), b"")

    assert_terminated(client, client.send(data(1, b"more")), Http2ErrorCode.STREAM_CLOSED)


def test_stream_ids_only_grow(client):
    client.open(5, end_stream=True)

    assert_terminated(client, client.send(client.headers(3)), Http2ErrorCode.STREAM_CLOSED)


def test_reset_by_the_client_is_told_once(client):
    client.open(1)

    events = client.send(rst_stream(1, 8), rst_stream(1, 8), window_update(1, 1))

    (event,) = events
    assert (event.stream_id, event.code, event.by_peer) == (1, Http2ErrorCode.CANCEL, True)
    assert client.output() == []


def test_data_after_the_clients_own_reset_is_refused_once(client):
    client.open(1)
    client.send(rst_stream(1))

    assert client.send(data(1, b"a"), data(1, b"b"), client.headers(1, end_stream=True)) == []
    assert client.output() == [SentFrame(frames.RST_STREAM, 0, 1, (5).to_bytes(4, "big"))]


def test_frames_that_cross_our_reset_are_ignored_but_keep_the_header_table(client):
    client.open(1)
    client.connection.reset(1)
    client.output()

    late = [("x-late", "1")]
    events = client.send(data(1, b"late"), client.headers(1, late, end_stream=True), rst_stream(1))
    (event,) = client.send(client.headers(3, [*GRPC_HEADERS, *late]))

    assert events == []
    assert event.head.fields[-1] == (b"x-late", b"1")


def test_unknown_and_priority_frames_are_ignored(client):
    assert (
        client.send(frame(0x77, 0xFF, 9, b"anything"), frame(frames.PRIORITY, 0, 7, bytes(5))) == []
    )
    assert client.output() == []


def test_ping_is_answered(client):
    assert client.send(ping(b"abcdefgh")) == []
    assert client.output() == [SentFrame(frames.PING, frames.ACK, 0, b"abcdefgh")]


def test_answer_to_our_ping_is_an_event(client):
    client.connection.ping(b"are you?")

    assert client.output() == [SentFrame(frames.PING, 0, 0, b"are you?")]
    assert client.send(ping(b"are you?", flags=frames.ACK)) == [PingAcknowledged(b"are you?")]


def test_goaway_of_the_client_lets_its_streams_go_on(client):
    client.open(1)

    (event,) = client.send(frame(frames.GOAWAY, 0, 0, bytes(4) + b"\0\0\0\x02bye"))

    assert event == GoAwayReceived(0, 2, b"bye")
    assert client.send(data(1, b"x")) == [DataReceived(1, b"x", end_stream=False)]


def test_stream_beyond_the_limit_is_refused_and_the_rest_goes_on():
    client = FrameClient(Http2Limits(max_concurrent_streams=2))
    client.open(1, 3)

    assert client.send(client.headers(5), data(5, b"ignored")) == []
    assert_reset(client, 5, Http2ErrorCode.REFUSED_STREAM)
    client.connection.reset(1)
    assert len(client.send(client.headers(7))) == 1


def test_shutdown_serves_what_is_on_its_way_then_refuses(client):
    client.open(1, end_stream=True)
    client.connection.begin_shutdown()
    notice, question = client.output()
    assert notice.payload[:8] == b"\x7f\xff\xff\xff\0\0\0\0"

    assert len(client.send(client.headers(3, end_stream=True))) == 1
    assert client.send(ping(question.payload, flags=frames.ACK)) == []
    assert client.output() == [SentFrame(frames.GOAWAY, 0, 0, b"\0\0\0\x03\0\0\0\0")]
    assert client.send(client.headers(5)) == []
    assert_reset(client, 5, Http2ErrorCode.REFUSED_STREAM)
    assert not client.connection.should_close
    for stream_id in (1, 3):
        client.connection.send_response(stream_id, RESPONSE_HEAD, (b"x",), b"")

    assert client.connection.should_close


def test_shutdown_can_be_finished_without_the_clients_answer(client):
    client.connection.begin_shutdown()
    client.connection.begin_shutdown()
    client.connection.finish_shutdown()
    client.connection.finish_shutdown()

    assert [sent.kind for sent in client.output()] == [frames.GOAWAY, frames.PING, frames.GOAWAY]
    assert client.connection.should_close


def test_abort_names_code_and_reason(client):
    client.open(1)
    client.connection.abort(Http2ErrorCode.INTERNAL_ERROR, "broken")

    assert client.connection.take_events() == [
        ConnectionTerminated(Http2ErrorCode.INTERNAL_ERROR, "broken")
    ]
    assert client.output() == [SentFrame(frames.GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\x02broken")]


def test_streams_can_be_ended_after_abort(client):
    client.open(1, end_stream=True)
    client.connection.abort(Http2ErrorCode.INTERNAL_ERROR, "broken")
    client.connection.send_headers(1, RESPONSE_HEAD, end_stream=True)

    assert [sent.kind for sent in client.output()] == [frames.GOAWAY, frames.HEADERS]
    assert client.connection.should_close


def test_abort_drops_queued_data():
    client = responding(1, 3, window=10)
    client.connection.send_data(1, bytes(100))
    client.connection.send_data(3, bytes(100), end_stream=True)
    client.connection.abort(Http2ErrorCode.INTERNAL_ERROR, "broken")

    assert [sent.kind for sent in client.output()] == [frames.GOAWAY]
    assert client.connection.is_open(1)
    assert not client.connection.is_open(3)


def test_connection_ends_once(client):
    client.connection.abort(Http2ErrorCode.INTERNAL_ERROR, "broken")
    client.connection.abort(Http2ErrorCode.INTERNAL_ERROR, "broken again")

    assert len(client.connection.take_events()) == 1
    assert len(client.output()) == 1


def test_settings_of_the_client_can_be_read(client):
    client.send(settings(setting(6, 8192), setting(HEADER_TABLE_SIZE, 100)))

    assert client.connection.peer_settings.max_header_list_bytes == 8192
    assert client.connection.peer_settings.header_table_bytes == 100
    assert client.connection.peer_settings.max_frame == 16_384


def test_frames_before_a_wrong_one_in_the_same_chunk_count(client):
    events = client.send(client.headers(1), data(3, b"idle"))

    assert [type(event) for event in events] == [RequestReceived, ConnectionTerminated]


def test_repr_shows_the_counts(client):
    client.open(1, 3)

    assert repr(client.connection) == "<Connection open, 2 streams, last 3>"
