# SPDX-License-Identifier: Apache-2.0
"""The raw-socket client against a peer that answers as told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from benchmarks.large_client import LargeTensorClient

MEBIBYTE = 2**20
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n%b"


def read_request(peer: socket.socket) -> bytes:
    """The tensor of one request."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += peer.recv(65536)
    head, body = data.split(b"\r\n\r\n", 1)
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(fields[b"Content-Length"]):
        body += peer.recv(MEBIBYTE)
    return body[int(fields[b"Inference-Header-Content-Length"]) :]


@pytest.fixture
def client_of():
    """A client of a server that gives one request's tensor to a function and sends its result."""
    threads, clients = [], []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def client_of(answer: Callable[[bytes], bytes]) -> LargeTensorClient:
            def serve() -> None:
                peer, _ = listener.accept()
                with peer:
                    peer.sendall(answer(read_request(peer)))

            threads.append(threading.Thread(target=serve))
            threads[-1].start()
            clients.append(LargeTensorClient(listener.getsockname()[1], 1))
            return clients[-1]

        yield client_of
        for client in clients:
            client.close()
        for thread in threads:
            thread.join()


def test_client_gets_the_tensor_behind_the_json_header(client_of):
    client = client_of(lambda tensor: OK % (len(tensor) + 2, b"{}" + tensor))

    assert len(client.call()) == MEBIBYTE


def test_client_notices_other_bytes_than_it_sent(client_of):
    client = client_of(lambda tensor: OK % (len(tensor), bytes(len(tensor))))

    with pytest.raises(RuntimeError, match="other bytes"):
        client.check()


def test_client_notices_an_error_status(client_of):
    client = client_of(lambda _: b"HTTP/1.1 500 Internal\r\nContent-Length: 0\r\n\r\n")

    with pytest.raises(RuntimeError, match=r"expected status 200, got .* 500 Internal"):
        client.call()


def test_client_notices_an_answer_cut_short(client_of):
    client = client_of(lambda tensor: OK % (len(tensor), tensor[:10]))

    with pytest.raises(ConnectionError, match="closed after"):
        client.call()
