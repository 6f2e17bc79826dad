# SPDX-License-Identifier: Apache-2.0
"""What the project relies on of the transports of clients: uvloop's, and the simulated ones."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from tests.simulation.systems import on_loop, turns

uvloop = pytest.importorskip("uvloop")  # the simulated transport differs from asyncio's own


class Notes:
    """Notes what a transport calls."""

    keeps_open: bool | None = None  # the answer of `eof_received`

    def __init__(self):
        self.seen = []
        self.received = b""
        self.transport = None
        self._changed = asyncio.Event()

    def note(self, *words):
        self.seen.append(words[0] if len(words) == 1 else words)
        self._changed.set()

    async def until(self, is_done):
        while not is_done():
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 30)

    async def until_lost(self):
        await self.until(lambda: self.names[-1:] == ["lost"])
        await turns()

    async def until_received(self, size):
        await self.until(lambda: len(self.received) >= size)

    @property
    def names(self):
        return [each if isinstance(each, str) else each[0] for each in self.seen]

    @property
    def ends(self):
        """What was called, without how often data came."""
        return [each for each in self.seen if each != "data"]

    def connection_made(self, transport):
        self.transport = transport
        self.note("made")

    def data_received(self, data):
        assert type(data) is bytes
        self.received += data
        self.note("data")

    def eof_received(self):
        self.note("end")
        return self.keeps_open

    def connection_lost(self, exc):
        self.note("lost", type(exc))

    def pause_writing(self):
        self.note("pause")

    def resume_writing(self):
        self.note("resume")


class Recorder(Notes, asyncio.Protocol):
    """Notes what a transport calls that passes bytes."""


class BufferedRecorder(Notes, asyncio.BufferedProtocol):
    """Notes what a transport calls that reads into the protocol's buffer."""

    size = 4

    def __init__(self):
        super().__init__()
        self.buffer = bytearray(self.size)
        self.sizes = []

    def get_buffer(self, sizehint):
        assert sizehint == 65536
        return self.buffer

    def buffer_updated(self, nbytes):
        self.sizes.append(nbytes)
        self.data_received(bytes(self.buffer[:nbytes]))


async def open_connection(system, loop, kind=Recorder):
    """Returns a client's socket, and the transport and the protocol of the server's end."""
    client, server = system.tcp_pair()
    server.setblocking(False)
    transport, protocol = await loop.connect_accepted_socket(kind, server)
    return client, transport, protocol


async def read(loop, client, size):
    """Read in a thread, as the loop has to go on."""

    def read_all():
        data = b""
        while len(data) < size and (part := client.recv(size - len(data))):
            data += part
        return data

    return await loop.run_in_executor(None, read_all)


def write_until_paused(transport, protocol):
    """Write what the client does not read; returns the size."""
    size = 0
    while "pause" not in protocol.seen:
        transport.write(bytes(100_000))
        size += 100_000
    return size


def reset(client):
    """Reset a connection from the client's side."""
    if isinstance(client, socket.socket):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    else:
        client.file.reset()
    client.close()


# The beginning


@on_loop
async def test_protocol_hears_of_its_connection_before_the_call_returns(system, loop):
    _client, transport, protocol = await open_connection(system, loop)

    assert protocol.seen == ["made"]
    assert protocol.transport is transport
    assert transport.get_protocol() is protocol
    assert not transport.is_closing()
    assert transport.is_reading()
    transport.abort()
    await protocol.until_lost()


@on_loop
async def test_data_that_came_before_is_received(system, loop):
    client, server = system.tcp_pair()
    client.sendall(b"abc")
    system.poll_one(server, 1, 10_000)
    server.setblocking(False)
    transport, protocol = await loop.connect_accepted_socket(Recorder, server)
    await protocol.until_received(3)

    assert protocol.received == b"abc"
    transport.close()
    await protocol.until_lost()


@on_loop
async def test_connection_that_is_closed_at_its_beginning_reads_nothing(system, loop):
    class Closer(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.close()

    client, server = system.tcp_pair()
    client.sendall(b"abc")
    server.setblocking(False)
    _, protocol = await loop.connect_accepted_socket(Closer, server)
    await protocol.until_lost()

    assert protocol.seen == ["made", ("lost", type(None))]


@on_loop
async def test_protocol_hears_nothing_of_the_end_of_an_opening_that_was_cancelled(system, loop):
    client, server = system.tcp_pair()
    server.setblocking(False)
    protocol = Recorder()
    task = loop.create_task(loop.connect_accepted_socket(lambda: protocol, server))
    loop.call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    await turns()

    assert protocol.seen == ["made"]
    assert not protocol.transport.is_reading()
    server.close()
    assert await read(loop, client, 1) == b""
    assert protocol.seen == ["made"]


# Reading


@on_loop
async def test_data_arrives_in_its_order(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    data = bytes(range(256)) * 4000
    await loop.run_in_executor(None, client.sendall, data)
    await protocol.until_received(len(data))

    assert protocol.received == data
    transport.close()
    await protocol.until_lost()


@on_loop
async def test_protocol_with_a_buffer_gets_what_fits(system, loop):
    client, transport, protocol = await open_connection(system, loop, BufferedRecorder)
    client.sendall(b"abcdefghij")
    await protocol.until_received(10)

    assert protocol.received == b"abcdefghij"
    assert protocol.sizes == [4, 4, 2]
    client.close()
    await protocol.until_lost()
    assert protocol.ends == ["made", "end", ("lost", type(None))]
    assert transport.is_closing()


@on_loop
async def test_protocol_with_an_empty_buffer_loses_its_connection(system, loop):
    class Empty(BufferedRecorder):
        size = 0

    reports = []
    loop.set_exception_handler(lambda _, context: reports.append(type(context["exception"])))
    client, _, protocol = await open_connection(system, loop, Empty)
    client.sendall(b"a")
    await protocol.until_lost()

    assert protocol.seen == ["made", ("lost", RuntimeError)]
    assert reports == [RuntimeError]


@on_loop
async def test_paused_transport_reads_nothing(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    transport.pause_reading()
    transport.pause_reading()
    client.sendall(b"abc")
    client.close()
    await asyncio.sleep(0.01)

    assert protocol.seen == ["made"]
    assert not transport.is_reading()
    transport.resume_reading()
    transport.resume_reading()
    await protocol.until_lost()
    assert protocol.received == b"abc"
    assert protocol.ends == ["made", "end", ("lost", type(None))]


@on_loop
async def test_reading_can_be_paused_by_what_was_read(system, loop):
    class Pauser(BufferedRecorder):
        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            self.transport.pause_reading()

    client, transport, protocol = await open_connection(system, loop, Pauser)
    client.sendall(b"abcdefghij")
    for count in range(1, 4):
        await protocol.until(lambda count=count: protocol.names.count("data") >= count)
        await turns()

        assert protocol.names.count("data") == count
        transport.resume_reading()
    assert protocol.received == b"abcdefghij"
    transport.close()
    await protocol.until_lost()


@on_loop
async def test_reading_cannot_be_paused_before_it_began(system, loop):
    class Pauser(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            assert not transport.is_reading()
            transport.pause_reading()

    client, transport, protocol = await open_connection(system, loop, Pauser)
    client.sendall(b"abc")
    await protocol.until_received(3)

    assert transport.is_reading()
    transport.close()
    await protocol.until_lost()


@on_loop
async def test_protocol_that_closes_reads_no_more(system, loop):
    class Closer(BufferedRecorder):
        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            self.transport.close()

    client, _, protocol = await open_connection(system, loop, Closer)
    client.sendall(b"abcdefghij")
    await protocol.until_lost()

    assert protocol.seen == ["made", "data", ("lost", type(None))]


@on_loop
async def test_new_protocol_gets_what_comes(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    client.sendall(b"abc")
    await protocol.until_received(3)
    second = BufferedRecorder()
    transport.set_protocol(second)
    client.sendall(b"de")
    await second.until_received(2)
    transport.close()
    await second.until_lost()

    assert protocol.seen == ["made", "data"]
    assert second.seen == ["data", ("lost", type(None))]


# Writing


@on_loop
async def test_small_data_is_sent_at_once(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    transport.write(b"abc")
    transport.write(bytearray(b"def"))
    transport.write(memoryview(b"ghi"))
    transport.write(b"")
    transport.writelines([b"j", bytearray(b"k"), memoryview(b"l")])
    transport.writelines([])
    with pytest.raises(TypeError):
        transport.write("text")

    assert transport.get_write_buffer_size() == 0
    assert client.recv(1) == b"a"
    assert await read(loop, client, 11) == b"bcdefghijkl"
    transport.close()
    await protocol.until_lost()
    assert protocol.ends == ["made", ("lost", type(None))]


@on_loop
async def test_slow_reader_pauses_the_protocol_and_resumes_it(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    assert transport.get_write_buffer_limits()[1] == 65536
    size = write_until_paused(transport, protocol)

    assert transport.get_write_buffer_size() > 65536
    transport.write(b"more")
    transport.write(b"and more")
    assert protocol.seen == ["made", "pause"]
    data = await read(loop, client, size + 12)
    await protocol.until(lambda: "resume" in protocol.seen)
    assert data == bytes(size) + b"moreand more"
    assert transport.get_write_buffer_size() == 0
    assert protocol.seen == ["made", "pause", "resume"]
    transport.close()
    await protocol.until_lost()


@on_loop
async def test_protocol_is_paused_beyond_the_limit_that_was_set(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    transport.set_write_buffer_limits(high=1000)

    assert transport.get_write_buffer_limits() == (250, 1000)
    transport.write(bytes(900))
    assert protocol.seen == ["made"]
    size = write_until_paused(transport, protocol)
    assert transport.get_write_buffer_size() > 1000
    await read(loop, client, 900 + size)
    await protocol.until(lambda: "resume" in protocol.seen)
    transport.set_write_buffer_limits(high=10, low=5)
    assert transport.get_write_buffer_limits() == (5, 10)
    transport.close()
    await protocol.until_lost()


@on_loop
async def test_end_is_sent_after_what_was_written(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    size = write_until_paused(transport, protocol)
    transport.write_eof()
    transport.write_eof()

    assert transport.can_write_eof()
    assert not transport.is_closing()
    for call in (lambda: transport.write(b"a"), lambda: transport.writelines([b"a"])):
        with pytest.raises(RuntimeError):
            call()
    assert len(await read(loop, client, size + 1)) == size
    client.sendall(b"back")
    await protocol.until_received(4)
    client.close()
    await protocol.until_lost()
    assert protocol.ends == ["made", "pause", "resume", "end", ("lost", type(None))]


# The end


@pytest.mark.parametrize("answer", [False, None])
@on_loop
async def test_end_of_the_client_closes_the_connection(system, loop, answer):
    client, transport, protocol = await open_connection(system, loop)
    protocol.keeps_open = answer
    client.sendall(b"abc")
    client.shutdown(socket.SHUT_WR)
    await protocol.until_lost()

    assert protocol.ends == ["made", "end", ("lost", type(None))]
    assert protocol.received == b"abc"
    assert transport.is_closing()
    assert await read(loop, client, 1) == b""


@on_loop
async def test_protocol_can_answer_after_the_end_of_the_client(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    protocol.keeps_open = True
    client.shutdown(socket.SHUT_WR)
    await protocol.until(lambda: "end" in protocol.seen)
    await turns()

    assert protocol.seen == ["made", "end"]
    assert not transport.is_closing()
    assert not transport.is_reading()
    transport.write(b"back")
    transport.close()
    assert await read(loop, client, 10) == b"back"
    await protocol.until_lost()
    assert protocol.seen == ["made", "end", ("lost", type(None))]


@on_loop
async def test_closed_transport_tells_its_protocol_later_and_once(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    transport.write(b"abc")
    transport.close()
    transport.close()

    assert transport.is_closing()
    assert protocol.seen == ["made"]
    await protocol.until_lost()
    transport.close()
    transport.abort()
    await turns()
    assert protocol.seen == ["made", ("lost", type(None))]
    assert await read(loop, client, 10) == b"abc"


@on_loop
async def test_closed_transport_sends_what_was_written(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    size = write_until_paused(transport, protocol)
    transport.close()
    await turns()

    assert protocol.seen == ["made", "pause"]
    assert transport.is_closing()
    assert not transport.is_reading()
    transport.write(b"more")
    reading = read(loop, client, size + 4)
    assert await reading == bytes(size) + b"more"
    await protocol.until_lost()
    assert protocol.seen == ["made", "pause", "resume", ("lost", type(None))]


@on_loop
async def test_aborted_transport_drops_what_was_not_sent(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    size = write_until_paused(transport, protocol)
    transport.abort()
    transport.write(b"more")

    assert transport.is_closing()
    assert protocol.seen == ["made", "pause"]
    await protocol.until_lost()
    assert protocol.seen == ["made", "pause", ("lost", type(None))]
    assert 0 < len(await read(loop, client, size)) < size


@on_loop
async def test_aborted_transport_does_not_reset_the_connection(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    transport.write(b"abc")
    transport.abort()
    await protocol.until_lost()

    assert await read(loop, client, 10) == b"abc"


@on_loop
async def test_closed_transport_that_did_not_read_resets_the_connection(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    transport.pause_reading()
    client.sendall(b"abc")
    await asyncio.sleep(0.01)
    transport.close()
    await protocol.until_lost()

    with pytest.raises(ConnectionResetError):
        await read(loop, client, 1)


@on_loop
async def test_transport_of_a_lost_connection_refuses_to_write(system, loop):
    class Writer(Recorder):
        def connection_lost(self, exc):
            super().connection_lost(exc)
            self.transport.write(b"ignored")
            self.transport.resume_reading()
            self.transport.close()

    client, transport, protocol = await open_connection(system, loop, Writer)
    address = transport.get_extra_info("peername")
    client.close()
    await protocol.until_lost()

    for call in (lambda: transport.write(b"a"), transport.write_eof):
        with pytest.raises(RuntimeError, match="the handler is closed"):
            call()
    transport.pause_reading()
    transport.resume_reading()
    assert not transport.is_reading()
    assert transport.get_write_buffer_size() == 0
    assert transport.get_extra_info("socket") is None
    assert transport.get_extra_info("peername") == address
    assert protocol.seen == ["made", "end", ("lost", type(None))]


@on_loop
async def test_reset_comes_after_the_data_and_without_an_end(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    client.sendall(b"abc")
    reset(client)
    await protocol.until_lost()

    assert protocol.received == b"abc"
    assert protocol.ends == ["made", ("lost", ConnectionResetError)]
    assert transport.is_closing()


@on_loop
async def test_reset_ends_a_connection_that_is_paused(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    write_until_paused(transport, protocol)
    reset(client)
    await protocol.until_lost()

    assert protocol.seen == ["made", "pause", ("lost", ConnectionResetError)]
    assert transport.get_write_buffer_size() == 0


@on_loop
async def test_transport_that_does_not_read_hears_of_a_reset_when_it_writes(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    transport.pause_reading()
    reset(client)
    await asyncio.sleep(0.01)

    assert protocol.seen == ["made"]
    transport.write(b"abc")
    assert protocol.seen == ["made"]
    await protocol.until_lost()
    assert protocol.seen == ["made", ("lost", ConnectionResetError)]


@on_loop
async def test_writing_to_a_client_that_has_closed_fails_the_second_time(system, loop):
    client, transport, protocol = await open_connection(system, loop)
    protocol.keeps_open = True
    client.close()
    await protocol.until(lambda: "end" in protocol.seen)
    transport.write(b"a")
    await asyncio.sleep(0.01)

    assert protocol.seen == ["made", "end"]
    transport.write(b"b")
    await protocol.until_lost()
    assert protocol.seen == ["made", "end", ("lost", BrokenPipeError)]


@pytest.mark.parametrize("method", ["data_received", "eof_received"])
@on_loop
async def test_error_of_a_protocol_ends_its_connection(system, loop, method):
    def fail(*_):
        raise ValueError("of the test")

    reports = []
    loop.set_exception_handler(lambda _, context: reports.append(type(context["exception"])))
    client, _, protocol = await open_connection(
        system, loop, type("Failing", (Recorder,), {method: fail})
    )
    client.sendall(b"abc")
    client.close()
    await protocol.until_lost()

    assert protocol.ends == ["made", ("lost", ValueError)]
    assert reports == [ValueError]


@on_loop
async def test_error_of_a_protocol_at_the_end_is_reported(system, loop):
    class Failing(Recorder):
        def connection_lost(self, exc):
            super().connection_lost(exc)
            raise ValueError("of the test")

    reports = []
    loop.set_exception_handler(lambda _, context: reports.append(type(context["exception"])))
    client, transport, protocol = await open_connection(system, loop, Failing)
    transport.close()
    await protocol.until_lost()

    assert reports == [ValueError]
    assert await read(loop, client, 1) == b""
