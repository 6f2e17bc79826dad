# SPDX-License-Identifier: Apache-2.0
"""What holds of every instance, however requests and batches reach it: one suite for all ways."""

from __future__ import annotations

import contextlib

import pytest

from pytriton.transport.memory import PORTABLE_SETTING
from pytriton.triton import RemoteTriton, Triton, TritonConfig
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
