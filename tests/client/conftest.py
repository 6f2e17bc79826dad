# SPDX-License-Identifier: Apache-2.0
"""One server with the models of `models.py` for all tests of the clients, ours and the real one."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from pytriton.client import AsyncioDecoupledModelClient, DecoupledModelClient, ModelClient
from pytriton.client.waiting import ReadinessWait
from tests import peers
from tests.client.models import PAUSE
from tests.client.stalled_server import StalledServer
from tests.collected import items_in
from tests.e2e.waiting import eventually
from tests.free_ports import first_of_free_ports

MODELS = pathlib.Path(__file__).with_name("models.py")
LAST_MODEL = "PlainCounter"

_numbers = itertools.count()


def pytest_collection_modifyitems(items):
    for item in items_in(pathlib.Path(__file__).parent, items):
        if {"our_server", "server", "urls"} & set(item.fixturenames):
            item.add_marker(pytest.mark.e2e)


@dataclass(frozen=True)
class Server:
    """Where a server listens; its clients' results are compared under its name."""

    name: str
    http_port: int

    @property
    def urls(self) -> dict[str, str]:
        return {
            "http": f"http://127.0.0.1:{self.http_port}",
            "grpc": f"grpc://127.0.0.1:{self.http_port + 1}",
        }


@contextlib.contextmanager
def serving(name: str, python: pathlib.Path):
    port = first_of_free_ports(3)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', '')}"
    command, starts = [str(python), str(MODELS), str(port)], 1 if name == "ours" else peers.STARTS
    with peers.serving(command, port, LAST_MODEL, starts=starts, env=environment):
        yield Server(name, port)


@pytest.fixture(scope="session")
def our_server():
    with serving("ours", pathlib.Path(sys.executable)) as server:
        yield server


@pytest.fixture(scope="session")
def real_server():
    with serving("real", peers.python()) as server:
        yield server


@pytest.fixture(params=["ours", pytest.param("real", marks=pytest.mark.part("peers"))])
def server(request):
    return request.getfixturevalue("our_server" if request.param == "ours" else "real_server")


@pytest.fixture(params=["http", "grpc"])
def scheme(request):
    return request.param


@pytest.fixture
def url(server, scheme):
    return server.urls[scheme]


@pytest.fixture
def client(url):
    with ModelClient(url, "AddSub") as client:
        yield client


@pytest.fixture
def grpc_url(server):
    return server.urls["grpc"]


class Gate:
    """What models of a server wait at: `Gated`, and `Counter` if its input says so."""

    def __init__(self, server: Server) -> None:
        self.number = next(_numbers)
        self._url = server.urls["http"]

    @property
    def data(self) -> np.ndarray:
        """The input of `Gated` and `OpenGate`."""
        return np.array([self.number], np.int32)

    @property
    def pause(self) -> np.ndarray:
        """The input of `Counter` that makes it wait here after its first response."""
        return self.data + PAUSE

    def open(self) -> None:
        with ModelClient(self._url, "OpenGate") as client:
            client.infer_sample(self.data)

    def await_guest(self) -> None:
        """Wait until a model waits here."""
        with ModelClient(self._url, "HasGuest") as client:
            assert eventually(lambda: client.infer_sample(self.data)["is_there"][0])


@pytest.fixture
def gate(request):
    """A gate of the server that the test uses; it is opened in the end."""
    name = "server" if "server" in request.fixturenames else "our_server"
    gate = Gate(request.getfixturevalue(name))
    yield gate
    gate.open()


@pytest.fixture(params=["silent", "half", "trickling", "deaf", "unreachable"])
def stalled(request):
    with StalledServer(request.param) as server:
        yield server


@pytest.fixture
def looks_once(monkeypatch):
    """The time of each wait for a server or a model is up when it has its first answers."""
    monkeypatch.setattr(ReadinessWait, "next_pause_s", lambda wait: None)


@pytest.fixture(params=[DecoupledModelClient, AsyncioDecoupledModelClient])
def decoupled_client_class(request):
    return request.param
