# SPDX-License-Identifier: Apache-2.0
"""Responses that travel together, and none that waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytriton.backend.outbox import Outbox
from pytriton.transport.arena import Arena
from pytriton.transport.channel import Channel
from pytriton.transport.frames import ResponseItem, Responses
from pytriton.transport.link import socket_pair

DEADLINE_S = 20.0


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = (Channel(sock, Arena()) for sock in socket_pair())
    right.link.socket.settimeout(DEADLINE_S)
    yield left, right
    left.close()
    right.close()


def add(outbox: Outbox, *positions: int) -> None:
    with outbox.lock:
        outbox.add([ResponseItem(1, position) for position in positions], started_ns=7)


def received_positions(channel: Channel) -> list[int]:
    received = channel.receive()
    assert received is not None
    assert isinstance(received.frame, Responses)
    assert received.frame.started_ns == 7
    return [item.position for item in received.frame.items]


def test_items_of_one_flush_travel_in_one_message(ends: tuple[Channel, Channel]) -> None:
    outbox = Outbox(ends[0])
    add(outbox, 0)
    add(outbox, 1, 2)
    outbox.flush()
    outbox.flush()
    add(outbox, 3)
    outbox.flush()

    assert received_positions(ends[1]) == [0, 1, 2]
    assert received_positions(ends[1]) == [3]
    assert len(outbox) == 0


def test_held_items_leave_without_another_call(ends: tuple[Channel, Channel]) -> None:
    outbox = Outbox(ends[0])
    for position in range(3):
        add(outbox, position)
        outbox.hold()

        assert received_positions(ends[1]) == [position]
    outbox.close()


def test_helper_ends_quietly_with_the_server(ends: tuple[Channel, Channel]) -> None:
    outbox = Outbox(ends[0])
    ends[1].close()
    add(outbox, 0)
    outbox.hold()
    helper = outbox._helper
    assert helper is not None
    helper.join(DEADLINE_S)

    assert not helper.is_alive()


def test_closed_outbox_has_no_helper(ends: tuple[Channel, Channel]) -> None:
    outbox = Outbox(ends[0])
    add(outbox, 0)
    outbox.hold()
    helper = outbox._helper
    assert helper is not None
    outbox.close()
    helper.join(DEADLINE_S)

    assert not helper.is_alive()
