# SPDX-License-Identifier: Apache-2.0
"""A model that could send gigabytes to clients that read little: memory stays bounded."""

from __future__ import annotations

import contextlib
import socket

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2

from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tests.e2e.http_client import call
from tests.e2e.scripts import own_servers
from tests.e2e.waiting import eventually

RESPONSES = 100_000
RESPONSE_BYTES = 64 << 10
MAX_GROWTH_BYTES = 32 << 20
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"


class Flood:
    """A generator, sync or async, that counts what it made and whether it was ended."""

    def __init__(self) -> None:
        self.made = 0
        self.ends = 0
        self.server: psutil.Process
        self._answer = [{"y": np.zeros(RESPONSE_BYTES, np.uint8)}]

    def steps(self, requests):
        try:
            for _ in range(RESPONSES):
                self.made += 1
                yield self._answer
        finally:
            self.ends += 1

    async def async_steps(self, requests):
        try:
            for _ in range(RESPONSES):
                self.made += 1
                yield self._answer
        finally:
            self.ends += 1


@pytest.fixture(params=["steps", "async_steps"])
def flood(request, ports):
    model = Flood()
    tensors = [Tensor(name=name, dtype=np.uint8, shape=(-1,)) for name in "xy"]
    config = ModelConfig(batching=False, decoupled=True)
    others = set(own_servers())
    with Triton(config=TritonConfig(**ports)) as triton:
        (model.server,) = set(own_servers()) - others
        triton.bind("flood", getattr(model, request.param), tensors[:1], tensors[1:], config=config)
        triton.bind("other", lambda requests: requests, tensors[:1], tensors[1:])
        yield model


@contextlib.contextmanager
def grpc_reader(ports):
    request = service_pb2.ModelInferRequest(model_name="flood")
    request.inputs.add(name="x", datatype="UINT8", shape=[1])
    request.raw_input_contents.append(b"\0")
    with grpc.insecure_channel(f"127.0.0.1:{ports['grpc_port']}") as channel:
        responses = channel.stream_stream(
            STREAM_INFER,
            service_pb2.ModelInferRequest.SerializeToString,
            service_pb2.ModelStreamInferResponse.FromString,
        )(iter([request]))
        yield lambda: next(responses)
        responses.cancel()


@contextlib.contextmanager
def http_reader(ports):
    body = b'{"x":[0]}'
    with socket.create_connection(("127.0.0.1", ports["http_port"])) as sock:
        sock.sendall(
            b"POST /v2/models/flood/generate_stream HTTP/1.1\r\nHost: x\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        yield lambda: sock.recv(4096)


@pytest.mark.parametrize("reader", [grpc_reader, http_reader])
def test_slow_reader_holds_the_model_back_and_nobody_else(flood, ports, reader):
    before = flood.server.memory_info().rss
    with reader(ports) as read:
        for _ in range(20):
            read()
            body = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"UINT8","data":[7]}]}'
            assert call(ports["http_port"], "/v2/models/other/infer", body).status == 200

        # The windows of the channel and of the client, and what the system's sockets take.
        assert flood.made < 2000
        assert flood.server.memory_info().rss - before < MAX_GROWTH_BYTES
        assert flood.ends == 0

    assert eventually(lambda: flood.ends == 1)
