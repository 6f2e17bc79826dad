# SPDX-License-Identifier: Apache-2.0
"""Sockets of clients that the core passes to a front end."""

from __future__ import annotations

import itertools
import resource
import socket

import pytest

from pytriton.runtime.transport.link import socket_pair, stream_pair
from pytriton.serving.server.api.services import ClientService
from pytriton.serving.server.frontend.process import pass_client, receive_clients


@pytest.fixture(params=[socket_pair, stream_pair], ids=["messages", "stream"])
def link(request):
    core, front_end = request.param()
    core.setblocking(False)
    front_end.setblocking(False)
    yield core, front_end
    core.close()
    front_end.close()


@pytest.fixture
def clients():
    pairs = [socket.socketpair() for _ in range(3)]
    yield pairs
    for each in itertools.chain(*pairs):
        each.close()


def test_clients_arrive_with_their_protocol_and_in_order(link, clients):
    core, front_end = link
    protocols = [ClientService.HTTP, ClientService.GRPC, ClientService.HTTP]
    for protocol, (far, near) in zip(protocols, clients, strict=True):
        assert pass_client(core, protocol, near)
        near.close()
        far.send(b"hello")
    received = list(receive_clients(front_end))

    assert [protocol for protocol, _ in received] == protocols
    for number, (_, client) in enumerate(received):
        assert client.recv(10) == b"hello"
        client.sendall(bytes([number]))
        assert clients[number][0].recv(10) == bytes([number])
        client.close()


def test_nothing_is_received_when_no_client_waits(link):
    assert list(receive_clients(link[1])) == []


def test_closed_link_ends_quietly(link, clients):
    core, front_end = link
    core.close()

    assert list(receive_clients(front_end)) == []
    assert not pass_client(front_end, ClientService.HTTP, clients[0][0])


def test_full_link_takes_no_more_until_it_is_read(link, clients):
    core, front_end = link
    count = 0
    while pass_client(core, ClientService.GRPC, clients[0][0]) and count < 5000:
        count += 1
    assert 1 <= count < 5000
    first = [client for _, client in receive_clients(front_end)]

    assert pass_client(core, ClientService.GRPC, clients[0][0])
    rest = list(iter(lambda: list(receive_clients(front_end)), []))
    for client in (*first, *(client for batch in rest for _, client in batch)):
        client.close()
    assert len(first) + sum(map(len, rest)) == count + 1


def test_client_without_a_free_descriptor_is_counted_and_the_next_one_served(link, clients):
    core, front_end = link
    assert pass_client(core, ClientService.HTTP, clients[0][1])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        received = list(receive_clients(front_end))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert received == [(ClientService.HTTP, None)]
    assert pass_client(core, ClientService.GRPC, clients[1][1])
    ((protocol, client),) = receive_clients(front_end)

    assert protocol is ClientService.GRPC
    client.close()
