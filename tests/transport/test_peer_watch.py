# SPDX-License-Identifier: Apache-2.0
"""When a machine counts as gone, and that one with a busy process does not."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys

import pytest

from pytriton.runtime.transport.link import stream_pair
from pytriton.runtime.transport.stream_channel import is_peer_gone, is_silent, tune_stream


def info(retransmits=0, probes=0, last_ack_ms=0):
    return struct.pack("=2xBB52xI", retransmits, probes, last_ack_ms)


# Measured on a connection over a link that was taken down, and on one whose peer does not read.
GONE = [info(retransmits=4, last_ack_ms=4004), info(probes=2, last_ack_ms=5408)]
ALIVE = [
    info(),
    info(last_ack_ms=1_000_000),  # idle: the kernel's keepalive looks after it
    info(retransmits=3, last_ack_ms=2020),
    info(probes=1, last_ack_ms=12_000),  # the answer to the next probe is on its way
    info(probes=1, last_ack_ms=748),
]


@pytest.mark.parametrize("said", GONE)
def test_machine_that_does_not_answer_for_seconds_is_gone(said):
    assert is_silent(said)


@pytest.mark.parametrize("said", ALIVE)
def test_machine_that_answers_or_is_asked_nothing_is_not_gone(said):
    assert not is_silent(said)


def test_process_that_does_not_read_is_no_machine_that_is_gone():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        tune_stream(ours)
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while ours.send(bytes(1 << 20)):
                pass

        assert not is_peer_gone(ours)
        if sys.platform == "linux":  # it would end this connection after that time
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
    assert not is_peer_gone(ours)


def test_peer_of_a_unix_socket_is_never_gone():
    ours, theirs = stream_pair()
    with ours, theirs:
        assert not is_peer_gone(ours)
