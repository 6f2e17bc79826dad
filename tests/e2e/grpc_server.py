# SPDX-License-Identifier: Apache-2.0
"""A server with the few models that the gRPC tests share, and short ways to ask it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc

from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests.free_ports import free_ports

FLOAT = {"dtype": np.float32, "shape": (1,)}
BYTE = {"dtype": np.uint8, "shape": (-1,)}
NUMBER = {"dtype": np.int32, "shape": (1,)}


class GrpcServer:
    """A running server: its port, and what its models saw."""

    def __init__(self, triton: Triton, port: int) -> None:
        self.triton = triton
        self.port = port
        self.gate = threading.Event()  # the model `gated` answers once it is set
        self.entered = threading.Semaphore(0)  # released each time a model begins
        self.ended: list[str] = []  # how requests to `endless` ended
        self.yielded = 0  # responses that `flood` made

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def bind_models(self) -> None:
        """Bind everything below."""
        self._bind("add_sub", self._add_sub, ("a", "b"), ("add", "sub"), FLOAT, batched=True)
        self._bind("identity", self._identity, ("x",), ("y",), BYTE)
        self._bind("gated", self._gated, ("x",), ("y",), FLOAT)
        self._bind("count", self._count, ("x",), ("y",), NUMBER, decoupled=True)
        self._bind("endless", self._endless, ("x",), ("y",), NUMBER, decoupled=True)
        self._bind("flood", self._flood, ("x",), ("y",), BYTE, decoupled=True)

    def _bind(self, name, function, inputs, outputs, kind, *, batched=False, decoupled=False):
        self.triton.bind(
            name,
            function,
            [Tensor(name=item, **kind) for item in inputs],
            [Tensor(name=item, **kind) for item in outputs],
            config=ModelConfig(
                batching=batched,
                max_batch_size=64 if batched else 1,
                batcher=DynamicBatcher(),
                decoupled=decoupled,
            ),
        )

    def _add_sub(self, requests):
        return [
            {"add": item.data["a"] + item.data["b"], "sub": item.data["a"] - item.data["b"]}
            for item in requests
        ]

    def _identity(self, requests):
        return [{"y": item.data["x"]} for item in requests]

    def _gated(self, requests):
        self.entered.release()
        self.gate.wait()
        return self._identity(requests)

    def _count(self, requests):
        (request,) = requests
        for number in range(int(request.data["x"][0])):
            yield [{"y": np.array([number], np.int32)}]

    def _endless(self, requests):
        self.entered.release()
        number = 0
        try:
            while True:
                yield [{"y": np.array([number], np.int32)}]
                number += 1
        finally:
            self.ended.append("closed")

    def _flood(self, requests):
        (request,) = requests
        for _ in range(2000):
            self.yielded += 1
            yield [{"y": request.data["x"]}]


@contextlib.contextmanager
def grpc_server(security=None, **settings: Any) -> Iterator[GrpcServer]:
    """A server with the models, and settings of `TritonConfig`."""
    http, grpc, metrics = free_ports(3)
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    config = TritonConfig(**{**ports, "grpc_address": "127.0.0.1", **settings})
    security = security or TritonSecurityConfig(restricted_endpoints=[])
    with Triton(config=config, security_config=security) as triton:
        server = GrpcServer(triton, grpc)
        server.bind_models()
        triton.run()
        try:
            yield server
        finally:
            server.gate.set()


def tensor(name: str, array: np.ndarray[Any, Any]) -> Any:
    """An input of the official client."""
    names = {"float32": "FP32", "uint8": "UINT8", "int32": "INT32"}
    made = triton_grpc.InferInput(name, list(array.shape), names[array.dtype.name])
    made.set_data_from_numpy(array)
    return made


def add_sub_inputs(a: float = 1, b: float = 2) -> list[Any]:
    return [tensor(name, np.array([[value]], np.float32)) for name, value in (("a", a), ("b", b))]


def number_input(value: int) -> list[Any]:
    return [tensor("x", np.array([value], np.int32))]


def bytes_input(size: int) -> list[Any]:
    return [tensor("x", np.arange(size, dtype=np.uint32).astype(np.uint8))]
