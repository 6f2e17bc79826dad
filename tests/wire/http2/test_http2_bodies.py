# SPDX-License-Identifier: Apache-2.0
"""Responses that end with their body instead of trailers, and interim ones."""

from __future__ import annotations

import pytest

from pytriton.protocol.http2 import LocalProtocolError, encode_header_block, frames
from pytriton.protocol.http2.frames import BodyFrames
from tests.wire.http2.frame_client import (
    INITIAL_WINDOW_SIZE,
    RESPONSE_HEAD,
    FrameClient,
    setting,
    window_update,
)

HEADERS, DATA = frames.HEADERS, frames.DATA
END = frames.END_STREAM


def asking(window: int = 65_535) -> FrameClient:
    client = FrameClient(settings=setting(INITIAL_WINDOW_SIZE, window))
    client.open(1, end_stream=True)
    return client


def body_of(sent) -> bytes:
    return b"".join(each.payload for each in sent if each.kind == DATA)


@pytest.mark.parametrize("body", [(b"abc",), (b"a", b"", b"bc"), (memoryview(b"abc"),)])
def test_small_response_is_two_frames(body):
    client = asking()
    client.connection.send_body(1, RESPONSE_HEAD, body)

    assert client.output() == [
        (HEADERS, frames.END_HEADERS, 1, RESPONSE_HEAD),
        (DATA, END, 1, b"abc"),
    ]
    assert client.connection.open_streams == 0


@pytest.mark.parametrize("body", [(), (b"",)])
def test_response_without_a_body_is_one_frame(body):
    client = asking()
    client.connection.send_body(1, RESPONSE_HEAD, body)

    assert client.output() == [(HEADERS, frames.END_HEADERS | END, 1, RESPONSE_HEAD)]
    assert client.connection.open_streams == 0


@pytest.mark.parametrize("window", [1, 1000, 1 << 20])
def test_large_response_waits_for_the_window(window):
    client = asking(window)
    body = bytes(range(256)) * 1000
    client.send(window_update(0, 1 << 20))
    client.connection.send_body(1, RESPONSE_HEAD, [body[:100_000], body[100_000:]])
    sent = client.output()

    assert body_of(sent) == body[:window]

    if window < len(body):
        client.send(window_update(1, 1 << 20))
        sent += client.output()
    assert body_of(sent) == body
    assert [each.flags & END for each in sent if each.kind == DATA][-1] == END
    assert sum(bool(each.flags & END) for each in sent) == 1
    assert client.connection.open_streams == 0


def test_whole_response_is_joined_with_its_stream():
    client = asking()
    made = BodyFrames(RESPONSE_HEAD, 3)

    assert client.connection.send_whole(1, made, (b"abc",))
    assert client.output() == [
        (HEADERS, frames.END_HEADERS, 1, RESPONSE_HEAD),
        (DATA, END, 1, b"abc"),
    ]
    assert client.connection.open_streams == 0


def test_whole_response_that_does_not_fit_is_not_sent():
    client = asking(window=2)

    assert not client.connection.send_whole(1, BodyFrames(RESPONSE_HEAD, 3), (b"abc",))
    assert client.output() == []


def test_client_that_still_sends_is_asked_to_stop():
    client = FrameClient()
    client.open(1)
    client.connection.send_body(1, RESPONSE_HEAD, (b"abc",))

    assert [each.kind for each in client.output()] == [HEADERS, DATA, frames.RST_STREAM]


def test_interim_response_comes_before_the_real_one():
    client = FrameClient()
    client.open(1)
    interim = encode_header_block([(b":status", b"100")])
    client.connection.send_interim(1, interim)

    assert client.output() == [(HEADERS, frames.END_HEADERS, 1, interim)]

    client.connection.send_body(1, RESPONSE_HEAD, (b"abc",))

    assert body_of(client.output()) == b"abc"


def test_second_response_is_a_mistake_of_ours():
    client = asking()
    client.connection.send_headers(1, RESPONSE_HEAD)

    with pytest.raises(LocalProtocolError, match="has a head already"):
        client.connection.send_body(1, RESPONSE_HEAD, (b"abc",))


def test_response_on_a_stream_that_was_reset_is_dropped():
    client = asking()
    client.connection.reset(1)
    client.output()
    client.connection.send_interim(1, RESPONSE_HEAD)
    client.connection.send_body(1, RESPONSE_HEAD, (b"abc",))

    assert client.output() == []
