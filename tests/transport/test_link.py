# SPDX-License-Identifier: Apache-2.0
"""Messages and descriptors over both kinds of socket, waiting and not waiting."""

from __future__ import annotations

import os
import socket

import pytest

from pytriton.runtime.transport.control import Bind, ControlLink
from pytriton.runtime.transport.frames import decode_frame
from pytriton.runtime.transport.link import (
    MAX_DESCRIPTORS,
    Link,
    StreamLink,
    make_link,
    stream_pair,
)

KINDS = {"seqpacket": socket.SOCK_SEQPACKET, "stream": socket.SOCK_STREAM}


@pytest.fixture(params=KINDS)
def ends(request):
    left, right = map(make_link, socket.socketpair(socket.AF_UNIX, KINDS[request.param]))
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def open_descriptors():
    opened = []

    def open_many(count):
        opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(count))
        return opened[-count:]

    yield open_many
    for descriptor in opened:
        os.close(descriptor)


def test_link_fits_its_socket(ends):
    kind = ends[0].socket.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)

    assert type(ends[0]) is (StreamLink if kind == socket.SOCK_STREAM else Link)


def test_messages_arrive_one_by_one(ends):
    left, right = ends
    sent = [b"a", b"b" * 100_000, b"c" * 7]
    for message in sent:
        left.send(message)

        assert right.receive() == message

    left.socket.setblocking(False)
    for message in sent:
        left.send(message)
    assert [right.receive() for _ in sent] == sent


def test_end_of_the_peer_is_an_empty_message(ends):
    left, right = ends
    left.send(b"last")
    left.close()

    assert [right.receive(), right.receive()] == [b"last", b""]


def test_nothing_to_read_is_none(ends):
    left, right = ends
    assert right.receive(socket.MSG_DONTWAIT) is None
    right.socket.setblocking(False)
    assert right.receive() is None
    left.send(b"x")

    assert right.receive() == b"x"


def test_what_does_not_fit_is_sent_later_in_order(ends):
    left, right = ends
    left.socket.setblocking(False)
    sent = [bytes([number]) * 50_000 for number in range(40)]
    for message in sent:
        left.send(message)
    assert left.has_unsent

    received = []
    while len(received) < len(sent):
        received.append(right.receive())
        left.flush()
        left.check_integrity()

    assert received == sent
    assert not left.has_unsent


def test_send_to_a_peer_that_is_gone_is_an_error(ends):
    left, right = ends
    right.close()

    with pytest.raises(BrokenPipeError):
        left.send(b"x")


def test_descriptors_come_with_their_messages(ends, open_descriptors):
    left, right = ends
    first, second = open_descriptors(2), open_descriptors(1)
    left.send(b"one", first)
    left.send(b"none")
    left.send(b"two", second)
    assert [right.receive() for _ in range(3)] == [b"one", b"none", b"two"]

    taken = right.take_descriptors(2) + right.take_descriptors(5)
    assert len(taken) == 3
    for descriptor, original in zip(taken, first + second, strict=True):
        assert os.path.sameopenfile(descriptor, original)
        os.close(descriptor)


def test_stream_link_carries_any_number_of_descriptors(open_descriptors):
    ours, theirs = stream_pair()
    left, right = ControlLink(ours), ControlLink(theirs)
    count = 2 * MAX_DESCRIPTORS + 1
    left.send(Bind(1, {}, 1, [1] * count), open_descriptors(count))
    left.send(Bind(2, {}, 1, [1]), open_descriptors(1))

    for expected in (count, 1):
        message = right.receive()
        assert len(message.concurrency) == expected
        taken = right.take_descriptors(expected)
        assert len(taken) == expected
        for descriptor in taken:
            os.close(descriptor)
    left.close()
    right.close()


def test_stream_link_says_when_it_has_read_more_than_one_message():
    left, right = map(StreamLink, stream_pair())
    for message in (b"one", b"two"):
        left.send(message)
    assert not right.has_message
    assert right.receive() == b"one"
    assert right.has_message
    assert right.receive() == b"two"

    assert not right.has_message
    left.close()
    right.close()


def test_record_that_is_nested_too_deeply_is_refused():
    near, far = stream_pair()
    link = ControlLink(near)
    nested = b"\x92\xa5start\x81\xa1a" + b"\x91" * 100_000 + b"\x90"
    StreamLink(far).send(nested)

    with pytest.raises(ValueError, match="nested too deeply"):
        link.receive()
    link.close()
    far.close()


@pytest.mark.parametrize("message", [b"", b"\1", b"\1\0\0", b"\1\0\0\0"])
def test_message_without_a_record_is_refused(message):
    with pytest.raises(ValueError, match=r"expected a message|truncated"):
        decode_frame(bytearray(message))
