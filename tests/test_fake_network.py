# SPDX-License-Identifier: Apache-2.0
"""Connections without sockets: what two protocols see of each other."""

from __future__ import annotations

import asyncio

import pytest

from pytriton.client.asyncio_connections import _Connection
from pytriton.serving.server.options.server_options import ClientLimits
from pytriton.testing import FakeEventLoop
from tests.fake_network import DELIVERIES, HIGH_WATER_BYTES, byte_by_byte, connect
from tests.fakes import FakeLoop
from tests.server.http_fakes import ScriptedHandler, get, post

ANSWER_TIMEOUT_S = 180


class Peer(asyncio.Protocol):
    """Notes what happens to it."""

    def __init__(self, *, keeps_open: bool = False) -> None:
        self.data = bytearray()
        self.chunks: list[int] = []
        self.events: list[str] = []
        self.keeps_open = keeps_open

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.data += data
        self.chunks.append(len(data))

    def eof_received(self):
        self.events.append("eof")
        return self.keeps_open

    def connection_lost(self, exc):
        self.events.append(f"lost: {type(exc).__name__}")

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")


class BufferedPeer(Peer, asyncio.BufferedProtocol):
    """Reads into a small buffer of its own."""

    def get_buffer(self, sizehint):
        self.buffer = bytearray(7)
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes):
        self.data_received(self.buffer[:nbytes])


@pytest.fixture
def loop():
    return FakeLoop()


@pytest.fixture
def peers():
    return Peer(), Peer()


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_bytes_arrive_in_order_however_they_are_cut(loop, peers, delivery):
    first, second = peers
    connect(loop, first, second, DELIVERIES[delivery])
    first.transport.write(b"a question ")
    first.transport.writelines([b"in ", b"parts"])
    second.transport.write(b"an answer")
    loop.run()

    assert second.data == b"a question in parts"
    assert first.data == b"an answer"


def test_bytes_come_one_by_one(loop, peers):
    first, second = peers
    connect(loop, first, second, byte_by_byte)
    first.transport.write(b"abc")
    loop.run()

    assert second.chunks == [1, 1, 1]


def test_chunks_of_the_same_seed_are_the_same(loop):
    chunks = []
    for _ in range(2):
        first, second = Peer(), Peer()
        connect(loop, first, second, DELIVERIES["random 1"])
        first.transport.write(bytes(500))
        loop.run()
        chunks.append(second.chunks)

    assert chunks[0] == chunks[1]
    assert len(set(chunks[0])) > 1


def test_protocol_with_a_buffer_gets_as_much_as_it_holds(loop):
    first, second = Peer(), BufferedPeer()
    connect(loop, first, second)
    first.transport.write(b"0123456789")
    loop.run()

    assert second.data == b"0123456789"
    assert second.chunks == [7, 3]


def test_chunk_is_under_way_for_its_delay(loop, peers):
    first, second = peers
    connect(loop, first, second, byte_by_byte, delay_s=0.5)
    first.transport.write(b"ab")
    loop.advance(0.4)
    arrived = [bytes(second.data)]
    for _ in range(2):
        loop.advance(0.5)
        arrived.append(bytes(second.data))

    assert arrived == [b"", b"a", b"ab"]


def test_reader_that_pauses_fills_the_buffer_of_the_writer(loop, peers):
    first, second = peers
    connect(loop, first, second)
    second.transport.pause_reading()
    first.transport.write(bytes(HIGH_WATER_BYTES + 1))
    loop.run()
    waiting = first.transport.get_write_buffer_size()
    second.transport.resume_reading()
    loop.run()

    assert waiting == HIGH_WATER_BYTES + 1
    assert first.events == ["pause", "resume"]
    assert len(second.data) == HIGH_WATER_BYTES + 1


def test_half_closed_connection_still_answers(loop):
    first, second = Peer(), Peer(keeps_open=True)
    connect(loop, first, second, byte_by_byte)
    first.transport.write(b"all")
    first.transport.write_eof()
    loop.run()
    second.transport.write(b"answer")
    loop.run()

    assert second.data == b"all"
    assert second.events == ["eof"]
    assert first.data == b"answer"


def test_connection_that_is_closed_delivers_what_was_written(loop, peers):
    first, second = peers
    connect(loop, first, second, byte_by_byte)
    first.transport.write(b"the rest")
    first.transport.close()
    loop.run()

    assert second.data == b"the rest"
    assert second.events == ["eof", "lost: NoneType"]
    assert first.events == ["lost: NoneType"]


def test_aborted_connection_is_reset_for_the_other_end(loop, peers):
    first, second = peers
    connect(loop, first, second)
    first.transport.write(b"lost")
    first.transport.abort()
    loop.run()

    assert second.data == b""
    assert second.events == ["lost: ConnectionResetError"]
    assert first.events == ["lost: NoneType"]


@pytest.mark.parametrize("use", [lambda it: it.write(b"x"), lambda it: it.pause_reading()])
def test_use_after_the_end_is_a_mistake(loop, peers, use):
    first, second = peers
    connect(loop, first, second)
    first.transport.close()

    with pytest.raises(AssertionError):
        use(first.transport)


# Our client and our server


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_client_and_server_understand_each_other_however_bytes_are_cut(delivery):
    loop = FakeEventLoop()
    client = _Connection()
    server = ScriptedHandler(ClientLimits(), loop).make_connection()
    connect(loop, client, server, DELIVERIES[delivery], delay_s=0.001)

    async def ask(head: bytes, body: bytes = b"") -> bytes:
        answer = await asyncio.wait_for(client.exchange([head, body]), ANSWER_TIMEOUT_S)
        assert answer.status_code == 200
        return bytes(answer.body)

    async def scenario() -> list[bytes]:
        body = b"x" * 3000
        head = post(body, b"/two").removesuffix(body)
        return [await ask(get(b"/one")), await ask(head, body)]

    answers = loop.run_until_complete(scenario())
    client.abort()
    loop.close()

    assert answers == [b"GET /one ", b"POST /two " + b"x" * 3000]
