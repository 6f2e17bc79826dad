# SPDX-License-Identifier: Apache-2.0
"""What holds of every instance, however requests and batches reach it: one suite for all ways."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from pytriton.runtime.transport import channel as channel_module
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from pytriton.triton import RemoteTriton, Triton, TritonConfig
from tests.contract.benches import InstanceBench
from tests.contract.seam import Seam
from tests.e2e.conftest import new_ports
from tests.e2e.grpc_infer import GrpcCaller
from tests.e2e.hosts import Host

# The protocol, whether the channel to the instance has to do without what only Linux has, and
# whether the models are bound by who runs the server, or by somebody who joined it.
WAYS = {
    "http": ("http", "0", False),
    "http, portable": ("http", "1", False),
    "http, remote": ("http", "0", True),
    "grpc": ("grpc", "0", False),
}


class GrpcHost(Host):
    """A host whose clients speak gRPC."""

    def __init__(self, triton, ports, caller: GrpcCaller) -> None:
        super().__init__(triton, ports)
        self._caller = caller

    def infer(self, name, /, **inputs):
        return self._caller.infer(name, inputs)


@pytest.fixture(params=["native", "portable"])
def channel(request, monkeypatch):
    """With and without what only Linux has."""
    monkeypatch.setenv(PORTABLE_SETTING, "1" if request.param == "portable" else "0")


class Benches:
    """The instances of a test on one event loop; closed in the end."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._benches: list[InstanceBench] = []

    def add(self, bench):
        self._benches.append(bench)
        return bench

    def close(self) -> None:
        for bench in self._benches:
            bench.close()
        self.loop.close()


@pytest.fixture
def served():
    made = Benches()
    yield made
    made.close()


@pytest.fixture(params=["direct", "remote", "remote, portable"])
def seam(request, monkeypatch):
    """An engine and its client, in one process and over the sockets of a front end."""
    is_portable = request.param == "remote, portable"
    monkeypatch.setenv(PORTABLE_SETTING, "1" if is_portable else "0")
    # The thread of a model says soon, and not after five seconds, that it has read its last batch.
    monkeypatch.setattr(channel_module, "IDLE_SECONDS", 0.05)
    made = Seam(is_remote=request.param != "direct")
    yield made
    made.until_nothing_is_left()
    made.close()


@pytest.fixture(scope="module", params=WAYS)
def running_host(request):
    protocol, portable, is_remote = WAYS[request.param]
    ports = new_ports()
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv(PORTABLE_SETTING, portable)
        triton = stack.enter_context(Triton(config=TritonConfig(**ports)))
        caller = stack.enter_context(GrpcCaller(ports["grpc_port"]))
        host = GrpcHost(triton, ports, caller) if protocol == "grpc" else Host(triton, ports)
        if is_remote:
            url, token = f"localhost:{ports['http_port']}", triton.get_access_token()
            host.triton = stack.enter_context(RemoteTriton(url, access_token=token))
        yield host


@pytest.fixture
def host(running_host):
    yield running_host
    running_host.unbind_all()
