# SPDX-License-Identifier: Apache-2.0
"""Opening connections: names that take for ever, addresses that swallow everything."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time

import pytest

from pytriton.client import AsyncioModelClient, ModelClient
from pytriton.client.asyncio_connections import AsyncioHttpConnections
from pytriton.client.connections import HttpConnections, connect
from pytriton.client.exceptions import PyTritonClientTimeoutError
from pytriton.client.url import TritonUrl
from tests.client.scripted_server import OK, ScriptedServer
from tests.client.stalled_server import StalledServer
from tests.e2e.waiting import DEADLINE_S
from tests.free_ports import free_ports

NAME = "host.test"
LIMIT_S = 0.2
LONG_LOOK_UP_S = 60.0


class Names:
    """Stands in for the system's resolver, which knows one name."""

    def __init__(self):
        self.released = threading.Event()
        self.places = []
        self.failure = None
        self.has_answered = False
        self._is_hanging = False

    def hang(self):
        self._is_hanging = True

    def __call__(self, host, port, *, type, flags=0):  # noqa: A002  the system's name for it
        if host != NAME or flags & socket.AI_NUMERICHOST:
            return _GETADDRINFO(host, port, type=type, flags=flags)
        if self._is_hanging:
            self.released.wait(LONG_LOOK_UP_S)
        self.has_answered = True
        if self.failure is not None:
            raise self.failure
        return [(socket.AF_INET, type, 0, "", place) for place in self.places]


_GETADDRINFO = socket.getaddrinfo


@pytest.fixture
def names(monkeypatch):
    names = Names()
    monkeypatch.setattr("pytriton.client.connections.socket.getaddrinfo", names)
    yield names
    names.released.set()


async def get_asyncio(url):
    connections = AsyncioHttpConnections(TritonUrl.from_url(url))
    try:
        return (await connections.ask("GET", "/")).body
    finally:
        await connections.close()


def get_synchronously(url):
    connections = HttpConnections(TritonUrl.from_url(url), DEADLINE_S)
    try:
        return connections.ask("GET", "/").body
    finally:
        connections.close()


@pytest.fixture(params=["sync", "asyncio"])
def get(request):
    if request.param == "sync":
        return get_synchronously
    return lambda url: asyncio.run(asyncio.wait_for(get_asyncio(url), DEADLINE_S))


def place_of(url):
    address = TritonUrl.from_url(url)
    return address.hostname, address.port


def test_address_that_swallows_everything_does_not_keep_others_waiting(get, names):
    with StalledServer("unreachable") as stalled, ScriptedServer([OK]) as server:
        names.places = [("127.0.0.1", stalled.port), place_of(server.url)]

        assert get(f"http://{NAME}") == b"ok"


def test_address_that_refuses_is_passed_over(get, names):
    (closed,) = free_ports(1)
    with ScriptedServer([OK]) as server:
        names.places = [("127.0.0.1", closed), place_of(server.url)]

        assert get(f"http://{NAME}") == b"ok"


def test_address_keeps_its_chance_when_the_next_one_refuses(names):
    (closed,) = free_ports(1)
    with StalledServer("unreachable") as stalled:
        names.places = [("127.0.0.1", stalled.port), ("127.0.0.1", closed)]

        with pytest.raises(TimeoutError):
            connect(TritonUrl.from_url(NAME), time.monotonic() + 0.6)


def test_host_that_refuses_everywhere_is_an_error(get, names):
    names.places = [("127.0.0.1", port) for port in free_ports(2)]

    with pytest.raises(ConnectionRefusedError):
        get(f"http://{NAME}")


def test_host_without_addresses_is_an_error(get, names):
    with pytest.raises(ConnectionError, match=f"expected an address of {NAME}"):
        get(f"http://{NAME}")


def test_name_that_is_not_known_is_an_error(get, names):
    names.failure = socket.gaierror(socket.EAI_NONAME, "no such name")

    with pytest.raises(socket.gaierror, match="no such name"):
        get(f"http://{NAME}")


def test_look_up_that_hangs_does_not_break_the_limit(names):
    names.hang()
    with (
        ModelClient(f"http://{NAME}", "Model") as client,
        pytest.raises(PyTritonClientTimeoutError, match=f"looking up the name {NAME} timed out"),
    ):
        client.wait_for_model(LIMIT_S)

    assert not names.has_answered


def test_look_up_that_hangs_keeps_no_event_loop_from_ending(names):
    async def wait():
        async with AsyncioModelClient(f"http://{NAME}", "Model") as client:
            await client.wait_for_model(LIMIT_S)

    names.hang()
    with pytest.raises(PyTritonClientTimeoutError):
        asyncio.run(wait())

    assert not names.has_answered


def test_look_up_that_hangs_keeps_no_program_from_ending():
    source = f"""
import socket, threading
from pytriton.client import ModelClient
from pytriton.client.exceptions import PyTritonClientTimeoutError

def hang(host, port, **options):
    if options["flags"]:
        raise socket.gaierror
    threading.Event().wait()

socket.getaddrinfo = hang
client = ModelClient("http://{NAME}", "Model")
try:
    client.wait_for_server({LIMIT_S})
except PyTritonClientTimeoutError:
    print("in time")
"""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )

    assert (process.stdout, process.stderr) == ("in time\n", "")
