# SPDX-License-Identifier: Apache-2.0
"""Twice as much of anything is twice the work: of every frame, and beside any number of calls.

What a client can send many of is counted at three sizes: alone, and after as many calls were opened
as it is sent. The old mistakes at the end show that this finds what is not linear.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from pytriton.protocol.http2 import frames, headers, receiving
from pytriton.protocol.http2.frames import ConnectionViolation, Http2ErrorCode, frame
from pytriton.serving.server.http.reader import RequestReader
from pytriton.serving.server.options.server_options import ClientLimits
from tests.fuzz.fuzzing import assert_doubles
from tests.fuzz.grpc_rig import GrpcRig, infer_request, literal, plain_block, resize, string
from tests.fuzz.http_rig import HttpRig
from tests.fuzz.test_grpc_connection_fuzz import check_blocks
from tests.fuzz.test_http2_connection_fuzz import Http2Rig
from tests.server.grpc_fakes import framed
from tests.server.http2_fakes import head as request_fields
from tests.server.http_fakes import get, post
from tests.server.http_models import INFER, infer_body
from tests.wire.http2.frame_client import (
    data,
    ping,
    rst_stream,
    setting,
    settings,
    window_update,
)

SIZES = (40, 80, 160)
CALLS = 30  # that are open beside what is sent alone
READ_BYTES = 64 << 10
PREFACE = frames.PREFACE + settings() + window_update(0, 2**30)
# What frames of a client may cost at most before the budget of its connection ends it.
LITTLE_BUDGET = 30
SLACK = 2500

_call_block = functools.cache(plain_block)


def head(
    stream_id: int, method: str = "ModelStreamInfer", more: bytes = b"", flags: int = 4
) -> bytes:
    return frame(frames.HEADERS, flags, stream_id, _call_block(method) + more)


def opened(count: int) -> bytes:
    return b"".join(head(2 * number + 1) for number in range(count))


def later(calls: int, number: int) -> int:
    """The id of a new stream, after so many calls."""
    return 2 * (calls + number) + 1


def each_new(calls: int, count: int, make: Callable[[int], bytes]) -> bytes:
    return b"".join(make(later(calls, number)) for number in range(count))


def each_open(calls: int, count: int, make: Callable[[int], bytes]) -> bytes:
    """A frame for each open call, or for the first one if none is."""
    return b"".join(make(2 * (number % max(1, calls)) + 1) for number in range(count))


def timeout(milliseconds: int) -> bytes:
    return literal(b"grpc-timeout", b"%dm" % milliseconds)


INFERENCE = framed(infer_request())
REQUEST = framed(infer_request("stream"))
WINDOWS = [setting(4, 1000), setting(4, 1001)]
# By name, what is sent after so many calls were opened; the first argument is their number.
FRAMES: dict[str, Callable[[int, int], bytes]] = {
    "calls": lambda calls, count: each_new(calls, count, head),
    "whole calls": lambda calls, count: each_new(
        calls, count, lambda i: head(i, "ModelInfer") + data(i, INFERENCE, end_stream=True)
    ),
    "calls that end": lambda calls, count: each_new(calls, count, lambda i: head(i, flags=5)),
    "calls with deadlines": lambda calls, count: each_new(
        calls, count, lambda i: head(i, more=timeout(i))
    ),
    "calls with earlier deadlines": lambda calls, count: each_new(
        calls, count, lambda i: head(i, more=timeout(10**6 - i))
    ),
    "malformed calls": lambda calls, count: each_new(
        calls, count, lambda i: frame(frames.HEADERS, 4, i, b"\x82")
    ),
    "calls that are reset": lambda calls, count: each_new(
        calls, count, lambda i: head(i) + rst_stream(i)
    ),
    "trailers": lambda calls, count: each_open(
        calls, count, lambda i: frame(frames.HEADERS, 5, i, literal(b"a", b"b"))
    ),
    "blocks in parts": lambda calls, count: each_new(
        calls, count,
        lambda i: frame(frames.HEADERS, 0, i, _call_block("ServerLive"))
        + frame(frames.CONTINUATION, 4, i, b""),
    ),
    "continuations": lambda calls, count: head(later(calls, 0), flags=0) + frame(
        frames.CONTINUATION, 0, later(calls, 0), b""
    ) * count,
    "requests": lambda calls, count: each_open(calls, count, lambda i: data(i, REQUEST)),
    "requests of one call": lambda calls, count: each_open(1, count, lambda i: data(i, REQUEST)),
    "requests in one frame": lambda calls, count: data(1, REQUEST * count),
    "bytes of requests": lambda calls, count: b"".join(
        data(1, REQUEST[at % len(REQUEST) : at % len(REQUEST) + 1]) for at in range(count)
    ),
    "empty data": lambda calls, count: each_open(calls, count, lambda i: data(i, b"")),
    "padding": lambda calls, count: each_open(
        calls, count, lambda i: frame(frames.DATA, frames.PADDED, i, b"\x07" + bytes(7))
    ),
    "data of no call": lambda calls, count: rst_stream(1) + data(1, b"x") * count,
    "settings": lambda calls, count: settings(setting(3, 7)) * count,
    "sizes of windows": lambda calls, count: b"".join(settings(w) for w in WINDOWS) * (count // 2),
    "sizes of windows in a frame": lambda calls, count: settings(*WINDOWS * (count // 2)),
    "acknowledged settings": lambda calls, count: settings(flags=frames.ACK) * count,
    "windows": lambda calls, count: window_update(0, 1) * count,
    "windows of calls": lambda calls, count: each_open(calls, count, lambda i: window_update(i, 1)),
    "resets": lambda calls, count: each_open(calls, count, rst_stream),
    "priorities": lambda calls, count: each_open(
        calls, count, lambda i: frame(frames.PRIORITY, 0, i, bytes(5))
    ),
    "pings": lambda calls, count: ping() * count,
    "answers to pings": lambda calls, count: ping(flags=frames.ACK) * count,
    "GOAWAY": lambda calls, count: frame(frames.GOAWAY, 0, 0, bytes(8)) * count,
    "promises": lambda calls, count: frame(frames.PUSH_PROMISE, 4, 1, bytes(4)) * count,
    "unknown frames": lambda calls, count: frame(99, 0, 1, bytes(8)) * count,
    "fields": lambda calls, count: head(later(calls, 0), more=literal(b"a", b"b") * count),
    "fields of the table": lambda calls, count: head(
        later(calls, 0), more=literal(b"a", b"b", 0x40) * count
    ),
    "fields in Huffman's code": lambda calls, count: head(
        later(calls, 0), more=literal(b"name", b"v", is_huffman=True) * count
    ),
    "indexed fields": lambda calls, count: head(later(calls, 0), more=b"\x90" * count),
    "long fields": lambda calls, count: head(
        later(calls, 0), more=b"\x00\x01a" + string(b"v" * 10 * count)
    ),
    "sizes of the table": lambda calls, count: frame(
        frames.HEADERS, 4, later(calls, 0), resize(0) * count + _call_block("ServerLive")
    ),
}  # fmt: skip
# The time that is let pass after the frames.
TIMES_S = {"calls with deadlines": 5.0}


def session(name: str, calls: int, count: int, work_burst: int) -> Callable[[], None]:
    """A client that opens calls, sends frames, and leaves."""
    rig = GrpcRig(streams=4 * SIZES[-1], work_burst=work_burst, max_ping_strikes=2**40)
    wire = PREFACE + opened(calls) + FRAMES[name](calls, count)

    def run() -> None:
        rig.play(wire[at : at + READ_BYTES] for at in range(0, len(wire), READ_BYTES))
        rig.service.loop.advance(TIMES_S.get(name, 0.0))
        rig.end()

    return run


@pytest.mark.parametrize("name", FRAMES)
def test_work_grows_with_the_number_of_frames(name):
    assert_doubles(lambda count: session(name, CALLS, count, 10**9), SIZES, slack=SLACK)


@pytest.mark.parametrize("name", FRAMES)
def test_work_grows_with_frames_and_open_calls_together(name):
    assert_doubles(lambda count: session(name, count, count, LITTLE_BUDGET), SIZES, slack=SLACK)


CHUNKED = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER
REQUESTS: dict[str, Callable[[int], bytes]] = {
    "requests": lambda count: get(b"/v2/health/live") * count,
    "inferences": lambda count: post(infer_body(1.0), INFER) * count,
    "different heads": lambda count: b"".join(get(b"/v2?%d" % number) for number in range(count)),
    "headers": lambda count: get(b"/v2", *[b"a%d: b" % number for number in range(count)]),
    "repeated header": lambda count: get(b"/v2", *[b"a: b"] * count),
    "long header": lambda count: get(b"/v2", b"a: " + b"b" * 10 * count),
    "expectations": lambda count: post(b"{}", INFER, b"Expect: 100-continue") * count,
    "upgrades": lambda count: get(b"/v2", b"Upgrade: a", b"Connection: upgrade") * count,
    "chunks": lambda count: CHUNKED + b"1\r\n{\r\n" * count + b"0\r\n\r\n",
    "extensions": lambda count: CHUNKED + b"1;a=b\r\n{\r\n" * count + b"0\r\n\r\n",
    "trailers": lambda count: CHUNKED + b"1\r\n{\r\n0\r\n" + b"a: b\r\n" * count + b"\r\n",
    "chunked requests": lambda count: (CHUNKED + b"2\r\n{}\r\n0\r\n\r\n") * count,
    "body": lambda count: post(b"{" * 10 * count, INFER),
    "empty lines": lambda count: b"\r\n" * count + get(b"/v2"),
}
READS = {"as a whole": READ_BYTES, "in parts": 20, "byte by byte": 1}


def connection(name: str, count: int, read_bytes: int) -> Callable[[], None]:
    rig = HttpRig()
    wire = REQUESTS[name](count)
    return lambda: rig.play(wire[at : at + read_bytes] for at in range(0, len(wire), read_bytes))


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("name", REQUESTS)
def test_work_grows_with_requests_and_their_parts(name, reads):
    sizes = SIZES if reads != "byte by byte" else (5, 10, 20)
    assert_doubles(lambda count: connection(name, count, READS[reads]), sizes, slack=SLACK)


def asking(
    stream_id: int, *more: tuple[bytes, bytes], flags: int = 4, target: bytes = INFER
) -> bytes:
    """The head of a request over HTTP/2."""
    fields = request_fields(target, *more, method=b"POST")
    return frame(frames.HEADERS, flags, stream_id, b"".join(literal(*each) for each in fields))


JSON = infer_body(1.0)
# By name, what is sent to the HTTP port after so many requests without an end.
STREAMS: dict[str, Callable[[int, int], bytes]] = {
    "requests": lambda open_, count: each_new(open_, count, lambda i: asking(i, flags=5)),
    "inferences": lambda open_, count: each_new(
        open_, count, lambda i: asking(i) + data(i, JSON, end_stream=True)
    ),
    "different heads": lambda open_, count: each_new(
        open_, count, lambda i: asking(i, (b"a", b"%d" % i), flags=5)
    ),
    "requests without an end": lambda open_, count: each_new(open_, count, asking),
    "refused heads": lambda open_, count: each_new(
        open_, count, lambda i: asking(i, (b"host", b"other"))
    ),
    "resets": lambda open_, count: each_new(open_, count, lambda i: asking(i) + rst_stream(i)),
    "resets of inferences": lambda open_, count: each_new(
        open_, count, lambda i: asking(i) + data(i, JSON, end_stream=True) + rst_stream(i)
    ),
    "expectations": lambda open_, count: each_new(
        open_, count, lambda i: asking(i, (b"expect", b"100-continue"))
    ),
    "announced bodies": lambda open_, count: each_new(
        open_, count, lambda i: asking(i, (b"content-length", b"70000")) + data(i, b"{")
    ),
    "parts of bodies": lambda open_, count: each_open(open_, count, lambda i: data(i, b"{")),
    "parts of one body": lambda open_, count: each_open(1, count, lambda i: data(i, b"{")),
    "trailers": lambda open_, count: each_open(
        open_, count, lambda i: frame(frames.HEADERS, 5, i, literal(b"a", b"b"))
    ),
    "fields": lambda open_, count: asking(
        later(open_, 0), *[(b"a%d" % number, b"b") for number in range(count)]
    ),
    "repeated field": lambda open_, count: asking(later(open_, 0), *[(b"a", b"b")] * count),
    "cookies": lambda open_, count: asking(later(open_, 0), *[(b"cookie", b"b")] * count),
    "hosts": lambda open_, count: asking(later(open_, 0), *[(b"host", b"h")] * count),
}


def streams(name: str, open_count: int, count: int, work_burst: int) -> Callable[[], None]:
    """A client of the HTTP port that begins requests, sends frames, and leaves."""
    rig = Http2Rig(ClientLimits(), streams=4 * SIZES[-1], work_burst=work_burst)
    begun = b"".join(asking(2 * number + 1) for number in range(open_count))
    wire = PREFACE + begun + STREAMS[name](open_count, count)

    def run() -> None:
        rig.play([wire[at : at + READ_BYTES] for at in range(0, len(wire), READ_BYTES)])
        rig.service.loop.advance(5)
        rig.end()

    return run


@pytest.mark.parametrize("name", STREAMS)
def test_work_grows_with_streams_of_the_http_port(name):
    assert_doubles(lambda count: streams(name, CALLS, count, 10**9), SIZES, slack=SLACK)


@pytest.mark.parametrize("name", STREAMS)
def test_work_grows_with_streams_and_open_requests_together(name):
    assert_doubles(lambda count: streams(name, count, count, LITTLE_BUDGET), SIZES, slack=SLACK)


# Old mistakes


def settings_for_each_stream(self, flags, stream_id, payload):
    """As it was: every value of a frame went to all streams, however many values came."""
    core = self._core
    core.charge(receiving.work.SETTINGS)
    for number, value in frames.parse_settings(payload):
        before = core.peer.initial_window
        core.peer.apply(number, value)
        for stream in core.streams.open.values():
            stream.send_window += core.peer.initial_window - before
            if stream.send_window > frames.MAX_WINDOW:
                raise ConnectionViolation(Http2ErrorCode.FLOW_CONTROL_ERROR, "")
            core.outbox.schedule(stream)
    core.outbox.reply(frames.SETTINGS_ACK)


def test_settings_that_go_to_all_streams_one_by_one_are_found(monkeypatch):
    monkeypatch.setattr(receiving.ControlFrames, "on_settings", settings_for_each_stream)

    with pytest.raises(AssertionError, match="work of"):
        test_work_grows_with_frames_and_open_calls_together("sizes of windows in a frame")


def test_sizes_of_the_table_that_are_all_taken_are_found(monkeypatch):
    """As it was: thousands of sizes in one block were taken one by one, as they are no fields."""
    monkeypatch.setattr(headers, "_MAX_RESIZES", 10**6)

    with pytest.raises(AssertionError, match="units of work for 6 fields"):
        check_blocks([resize(0) * 8000 + plain_block("ModelInfer")])


def test_body_that_is_looked_at_again_for_each_part_is_found(monkeypatch):
    """As a simple parser does it: it keeps what came, and begins again with each read."""
    feed = RequestReader.feed

    def feed_again(self, data):
        kept = self.__dict__.setdefault("kept", bytearray())
        kept += data
        for _ in kept:
            pass
        feed(self, data)

    monkeypatch.setattr(RequestReader, "feed", feed_again)

    with pytest.raises(AssertionError, match="work of"):
        test_work_grows_with_requests_and_their_parts("chunks", "in parts")
