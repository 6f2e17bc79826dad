# SPDX-License-Identifier: Apache-2.0
"""Pairs of channels of every kind, and one with an outbox of responses."""

from __future__ import annotations

import pytest

from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.link import socket_pair, stream_pair
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.response_outbox import ResponseOutbox
from pytriton.runtime.transport.stream_channel import StreamChannel
from tests.e2e.waiting import DEADLINE_S
from tests.transport.tcp import tcp_pair

KINDS = ["native", "portable", "stream", "tcp"]
STREAMS = {"stream": stream_pair, "tcp": tcp_pair}


@pytest.fixture(params=KINDS)
def channels(request, monkeypatch):
    """Two ends of a channel of each kind."""
    if request.param in STREAMS:
        pair = [StreamChannel(sock) for sock in STREAMS[request.param]()]
    else:
        monkeypatch.setenv(PORTABLE_SETTING, "1" if request.param == "portable" else "0")
        pair = [MemoryChannel(sock, Arena()) for sock in socket_pair()]
    yield pair
    for end in pair:
        end.close()


@pytest.fixture
def far():
    """The end of a channel to which the `outbox` of its other end writes responses."""
    ours, theirs = socket_pair()
    theirs.settimeout(DEADLINE_S)
    far = MemoryChannel(theirs, Arena())
    far.outbox = ResponseOutbox(MemoryChannel(ours, Arena(limit_bytes=64 << 20)))
    yield far
    far.outbox.close()
    far.outbox.channel.close()
    far.close()
