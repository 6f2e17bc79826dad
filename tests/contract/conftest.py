# SPDX-License-Identifier: Apache-2.0
"""What holds of every instance, however requests and batches reach it: one suite for all ways."""

from __future__ import annotations

import pytest

from pytriton.transport.memory import PORTABLE_SETTING
from pytriton.triton import Triton, TritonConfig
from tests.e2e.conftest import new_ports
from tests.e2e.grpc_infer import GrpcCaller
from tests.e2e.hosts import Host

# The protocol, and whether the channel to the instance has to do without what only Linux has.
WAYS = {"http": ("http", "0"), "http, portable": ("http", "1"), "grpc": ("grpc", "0")}


class GrpcHost(Host):
    """A host whose clients speak gRPC."""

    def __init__(self, triton, ports, caller: GrpcCaller) -> None:
        super().__init__(triton, ports)
        self._caller = caller

    def infer(self, name, /, **inputs):
        return self._caller.infer(name, inputs)


@pytest.fixture(scope="module", params=WAYS)
def running_host(request):
    protocol, portable = WAYS[request.param]
    ports = new_ports()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PORTABLE_SETTING, portable)
        with Triton(config=TritonConfig(**ports)) as triton, GrpcCaller(ports["grpc_port"]) as grpc:
            yield GrpcHost(triton, ports, grpc) if protocol == "grpc" else Host(triton, ports)


@pytest.fixture
def host(running_host):
    yield running_host
    running_host.unbind_all()
