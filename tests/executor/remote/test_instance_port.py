# SPDX-License-Identifier: Apache-2.0
"""The port of instances: who is let in, who is refused in words, and how much strangers may use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import pytest

from pytriton.base.errors import UnavailableError
from pytriton.runtime.executor.remote import instance_port
from pytriton.runtime.executor.remote.instance_port import (
    InstancePort,
    UnprovenConnections,
    listen_tcp,
)
from pytriton.runtime.executor.remote.starter import ProcessPlace
from pytriton.runtime.transport.handshake import ClientHandshake, HandshakeError, WorkerRefusedError
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from pytriton.runtime.transport.rendezvous import connect_to_address, tcp_address
from pytriton.testing import FakeClock
from tests.e2e.waiting import DEADLINE_S
from tests.executor.worker_rig import until

TOKEN = "the secret of this start"
HERE = ProcessPlace("node-a", "n1", 10)


def run(scenario):
    async def main():
        port = InstancePort(asyncio.get_running_loop(), "127.0.0.1")
        await port.open()
        try:
            await asyncio.wait_for(scenario(port), DEADLINE_S)
        finally:
            await port.close()

    asyncio.run(main())


def hello(start="m-1", token=TOKEN, place=HERE, rank=0):
    return ClientHandshake(token, start=start, node_id=place.node_id, pid=place.pid, rank=rank)


def shake(address, handshake, sent=None):
    """The blocking side of a process; returns its socket."""
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(connect_to_address(address, DEADLINE_S))
        while not handshake.is_welcome:
            if answer := handshake.feed(read(sock, handshake.wanted_bytes)):
                sock.sendall(answer)
                if sent is not None:
                    sent.append(answer)
        stack.pop_all()
    return sock


def read(sock, size):
    data = sock.recv(size)
    if not data:
        raise EOFError
    return data


def enter(port, handshake=None, *, kind="tcp:", sent=None):
    """Returns the task of a process that connects."""
    (address,) = [each for each in port.addresses if each.startswith(kind)]
    return asyncio.ensure_future(asyncio.to_thread(shake, address, handshake or hello(), sent))


async def refusal(task):
    with pytest.raises(WorkerRefusedError) as refused:
        await task
    return str(refused.value)


@pytest.mark.parametrize("kind", ["tcp:", "unix:"])
@pytest.mark.parametrize("portable", ["0", "1"])
def test_expected_process_is_connected(kind, portable, monkeypatch):
    monkeypatch.setenv(PORTABLE_SETTING, portable)

    async def scenario(port):
        ticket = port.expect("m-1", TOKEN)
        ticket.admit([HERE])
        with await enter(port, kind=kind) as sock:
            await ticket.connected()
            (link,) = ticket.take()
            assert (link.fork_socket is None) is (kind == "tcp:")
            if kind == "unix:":
                _, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, sock, 1, 2)
                far = socket.socket(fileno=descriptors[0])
                os.close(descriptors[1])
            else:
                far = sock
            with far:
                link.sock.send(b"first frame")
                assert await asyncio.to_thread(far.recv, 100) == b"first frame"
            link.close()
        ticket.revoke()

    run(scenario)


def test_process_waits_until_the_starter_has_told_about_it():
    async def scenario(port):
        ticket = port.expect("m-1", TOKEN)
        sent = []
        task = enter(port, sent=sent)
        await until(lambda: ticket._decided and sent)
        assert not task.done()
        ticket.admit([HERE])
        (await task).close()
        await ticket.connected()

    run(scenario)


STRANGERS = {
    "unknown start": (hello(start="m-2"), "'m-2' is not expected"),
    "wrong token": (hello(token="another"), "'m-1' is not expected"),
    "wrong process": (
        hello(place=ProcessPlace("", "n1", 11)),
        "'m-1' is process 10 of node n1, not",
    ),
    "wrong node": (hello(place=ProcessPlace("", "n2", 10)), "not process 10 of node n2"),
    "wrong rank": (hello(rank=1), "has 1 processes, so none of rank 1"),
}


@pytest.mark.parametrize("who", STRANGERS)
def test_stranger_is_refused_in_words_and_the_right_one_still_let_in(who):
    handshake, words = STRANGERS[who]

    async def scenario(port):
        ticket = port.expect("m-1", TOKEN)
        ticket.admit([HERE])

        assert words in await refusal(enter(port, handshake))
        (await enter(port)).close()
        await ticket.connected()

    run(scenario)


def test_process_that_comes_back_is_refused():
    async def scenario(port):
        ticket = port.expect("m-1", TOKEN)
        ticket.admit([HERE])
        (await enter(port)).close()
        await ticket.connected()

        assert "was connected before" in await refusal(enter(port))
        ticket.revoke()
        assert "'m-1' is not expected" in await refusal(enter(port))

    run(scenario)


def test_hello_that_was_recorded_is_of_no_use_on_another_connection():
    async def scenario(port):
        ticket = port.expect("m-1", TOKEN)
        sent = []
        task = enter(port, sent=sent)  # it waits to be placed, and holds nobody else up
        await until(lambda: ticket._decided and sent)

        def answer():
            with connect_to_address(port.addresses[-1], DEADLINE_S) as sock:
                sock.recv(4096)
                sock.sendall(sent[0])
                return sock.recv(4096)

        assert b"'m-1' is not expected" in await asyncio.to_thread(answer)
        ticket.admit([HERE])
        (await task).close()
        await ticket.connected()

    run(scenario)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, b"\x01\0\0\0\xff"])
def test_other_protocol_is_closed(data, caplog):
    async def scenario(port):
        def talk():
            with connect_to_address(port.addresses[-1], DEADLINE_S) as sock:
                sock.sendall(data)
                while sock.recv(4096):
                    pass

        with contextlib.suppress(ConnectionResetError):
            await asyncio.to_thread(talk)
        await until(lambda: not port._unproven)

    run(scenario)
    assert "a connection to the port of instances was closed" in caplog.text


def test_silent_connections_keep_nobody_out(monkeypatch):
    monkeypatch.setattr(instance_port, "MAX_UNPROVEN", 3)
    monkeypatch.setattr(instance_port, "HELLO_TIMEOUT_S", 3600.0)

    async def scenario(port):
        address = port.addresses[-1]
        silent = [
            await asyncio.to_thread(connect_to_address, address, DEADLINE_S) for _ in range(20)
        ]
        ticket = port.expect("m-1", TOKEN)
        ticket.admit([HERE])
        (await enter(port)).close()
        await ticket.connected()
        await until(lambda: len(port._tasks) <= 3)

        assert len(port._unproven) <= 3
        for sock in silent:
            sock.close()

    run(scenario)


def test_silent_connection_is_closed_after_a_while(monkeypatch, caplog):
    monkeypatch.setattr(instance_port, "HELLO_TIMEOUT_S", 0.01)

    async def scenario(port):
        with connect_to_address(port.addresses[-1], DEADLINE_S) as sock:
            while await asyncio.to_thread(sock.recv, 4096):
                pass
        await until(lambda: not port._unproven)

    run(scenario)
    assert "it did not say whose it is within 0.01 s" in caplog.text


def test_processes_that_wait_for_their_place_do_not_count_as_strangers(monkeypatch):
    monkeypatch.setattr(instance_port, "MAX_UNPROVEN", 1)
    connected = []

    async def scenario(port):
        tickets = [port.expect(f"m-{number}", TOKEN) for number in range(5)]
        tasks = []
        for number, ticket in enumerate(tickets):
            tasks.append(enter(port, hello(start=f"m-{number}")))
            await until(lambda ticket=ticket: ticket._decided)
        for ticket, task in zip(tickets, tasks, strict=True):
            ticket.admit([HERE])
            (await task).close()
            await ticket.connected()
            connected.append(ticket)

    run(scenario)

    assert len(connected) == 5


def test_flood_of_strangers_is_no_flood_of_lines(caplog):
    clock = FakeClock()
    known = UnprovenConnections(clock)
    for _ in range(1000):
        known.warn("a stranger")
    clock.advance(2.0)
    known.warn("another")

    assert caplog.messages == ["a stranger", "another (and 999 others before)"]


def test_revoked_start_refuses_who_waits():
    async def scenario(port):
        ticket = port.expect("m-1", TOKEN)
        task = enter(port)
        await until(lambda: ticket._decided)
        ticket.revoke()

        assert await refusal(task) == "'m-1' is not expected any more"
        with pytest.raises(UnavailableError, match="'m-1' is not expected any more"):
            await ticket.connected()

    run(scenario)


def test_group_is_connected_when_all_ranks_are():
    async def scenario(port):
        ticket = port.expect("g-1", TOKEN, 2)
        places = [HERE, ProcessPlace("node-b", "n2", 20)]
        ticket.admit(places)
        waiting = asyncio.ensure_future(ticket.connected())
        second = await enter(port, hello("g-1", place=places[1], rank=1))
        assert not waiting.done()
        first = await enter(port, hello("g-1", place=places[0]))
        await waiting
        links = ticket.take()
        for number, (link, sock) in enumerate(zip(links, (first, second), strict=True)):
            link.sock.send(bytes([number]))
            assert await asyncio.to_thread(sock.recv, 1) == bytes([number])
            link.close()
            sock.close()

    run(scenario)


def test_closed_port_ends_what_waits():
    async def scenario(port):
        port.expect("m-1", TOKEN)
        task = enter(port)
        await until(lambda: port._tickets["m-1"]._decided)
        await port.close()

        with pytest.raises((WorkerRefusedError, EOFError, ConnectionError)):
            await task

    run(scenario)


def test_impostor_of_a_server_is_noticed():
    async def serve(reader, writer):
        handshake = instance_port.ServerHandshake()
        writer.write(handshake.greeting())
        while handshake.feed(await reader.read(4096)) is None:
            pass
        writer.write(handshake.welcome("not the token"))
        await writer.drain()
        writer.close()

    async def scenario(port):
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = tcp_address(*server.sockets[0].getsockname()[:2])
            with pytest.raises(HandshakeError, match="does not know the token"):
                await asyncio.to_thread(shake, address, hello())

    run(scenario)


def test_port_in_use_is_an_error_in_words():
    async def main():
        loop = asyncio.get_running_loop()
        with listen_tcp("127.0.0.1", 0) as taken:
            number = taken.getsockname()[1]
            with pytest.raises(UnavailableError, match=f"for instances on 127.0.0.1:{number}: "):
                await InstancePort(loop, "127.0.0.1", number).open()

    asyncio.run(main())


@pytest.mark.parametrize("host", ["192.0.2.1", "localhost"])
def test_address_of_a_gateway_is_told_to_processes_and_all_addresses_are_listened_on(host):
    async def main():
        port = InstancePort(asyncio.get_running_loop(), host)
        await port.open()
        try:
            assert port.addresses[-1] == f"tcp:{host}:{port.port}"
            port._host = "127.0.0.1"
            ticket = port.expect("m-1", TOKEN)
            ticket.admit([HERE])
            (await enter(port)).close()
            await ticket.connected()
        finally:
            await port.close()

    asyncio.run(main())


@pytest.mark.parametrize("address", ["", "tcp:", "tcp:host", "tcp:host:port", "http://host:1"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="expected 'unix:NAME' or 'tcp:HOST:PORT', got '"):
        connect_to_address(address, 1)


def test_address_of_ipv6_has_brackets():
    assert tcp_address("::1", 80) == "tcp:[::1]:80"
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        connect_to_address(tcp_address(*server.getsockname()[:2]), DEADLINE_S).close()
