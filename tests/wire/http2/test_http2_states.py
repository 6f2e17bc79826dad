# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from pytriton.protocol.http2.frames import (
    ConnectionViolation,
    Http2ErrorCode,
    LocalProtocolError,
    StreamViolation,
)
from pytriton.protocol.http2.streams import TRANSITIONS, StreamInput, StreamState, next_state

# The rules as sentences of RFC 9113, section 5.1, to compare the table with: what a peer may do.
OPEN, REMOTE, LOCAL = (
    StreamState.OPEN,
    StreamState.HALF_CLOSED_REMOTE,
    StreamState.HALF_CLOSED_LOCAL,
)
PEER_SENDS = [event for event in StreamInput if event.name.startswith("RECV_")]
WE_SEND = [event for event in StreamInput if event.name.startswith("SEND_")]
BODY = [
    StreamInput.RECV_HEADERS,
    StreamInput.RECV_HEADERS_END,
    StreamInput.RECV_DATA,
    StreamInput.RECV_DATA_END,
]


def test_table_has_a_cell_for_every_state_and_input():
    assert [len(row) for row in TRANSITIONS] == [len(StreamInput)] * len(StreamState)


@pytest.mark.parametrize(
    "state,event,expected",
    [
        (StreamState.IDLE, StreamInput.RECV_HEADERS, OPEN),
        (StreamState.IDLE, StreamInput.RECV_HEADERS_END, REMOTE),
        (OPEN, StreamInput.RECV_DATA, OPEN),
        (OPEN, StreamInput.RECV_DATA_END, REMOTE),
        (OPEN, StreamInput.RECV_HEADERS_END, REMOTE),
        (OPEN, StreamInput.SEND_END, LOCAL),
        (REMOTE, StreamInput.SEND_END, StreamState.CLOSED),
        (LOCAL, StreamInput.RECV_DATA_END, StreamState.CLOSED),
        (LOCAL, StreamInput.RECV_HEADERS_END, StreamState.CLOSED),
    ],
)
def test_stream_moves_on(state, event, expected):
    assert next_state(1, state, event) is expected


@pytest.mark.parametrize("state", [OPEN, REMOTE, LOCAL])
def test_open_stream_can_be_reset_from_both_sides(state):
    assert next_state(1, state, StreamInput.RECV_RESET) is StreamState.RESET_BY_PEER
    assert next_state(1, state, StreamInput.SEND_RESET) is StreamState.RESET_BY_US


@pytest.mark.parametrize("event", [event for event in PEER_SENDS if event not in BODY[:2]])
def test_idle_stream_takes_headers_only(event):
    with pytest.raises(ConnectionViolation, match="IDLE") as caught:
        next_state(1, StreamState.IDLE, event)

    assert caught.value.code is Http2ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("event", BODY)
def test_half_closed_remote_stream_takes_no_body(event):
    with pytest.raises(StreamViolation) as caught:
        next_state(1, REMOTE, event)

    assert caught.value.code is Http2ErrorCode.STREAM_CLOSED


@pytest.mark.parametrize("event", BODY)
def test_body_after_the_end_costs_the_connection(event):
    with pytest.raises(ConnectionViolation) as caught:
        next_state(1, StreamState.CLOSED, event)

    assert caught.value.code is Http2ErrorCode.STREAM_CLOSED


@pytest.mark.parametrize("event", BODY)
def test_body_after_the_peers_reset_costs_the_stream(event):
    with pytest.raises(StreamViolation) as caught:
        next_state(1, StreamState.RESET_BY_PEER, event)

    assert caught.value.code is Http2ErrorCode.STREAM_CLOSED


@pytest.mark.parametrize("event", PEER_SENDS)
def test_everything_after_our_reset_is_ignored(event):
    assert next_state(1, StreamState.RESET_BY_US, event) is StreamState.RESET_BY_US


@pytest.mark.parametrize("event", [StreamInput.RECV_WINDOW_UPDATE, StreamInput.RECV_RESET])
@pytest.mark.parametrize("state", [StreamState.CLOSED, StreamState.RESET_BY_PEER])
def test_late_window_update_and_reset_are_ignored(state, event):
    assert next_state(1, state, event) is state


@pytest.mark.parametrize("state", [OPEN, LOCAL])
def test_trailers_must_end_the_stream(state):
    with pytest.raises(StreamViolation) as caught:
        next_state(1, state, StreamInput.RECV_HEADERS)

    assert caught.value.code is Http2ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("event", WE_SEND[:3])
@pytest.mark.parametrize("state", [state for state in StreamState if state not in {OPEN, REMOTE}])
def test_we_send_on_open_streams_only(state, event):
    with pytest.raises(LocalProtocolError, match=event.name):
        next_state(1, state, event)
