# SPDX-License-Identifier: Apache-2.0
"""The server that checks use, in their own process or as a script: AddSub, and a stream.

`python -m pytriton.tools.check.add_sub_server HTTP_PORT GRPC_PORT METRICS_PORT` serves until
SIGINT.
"""

from __future__ import annotations

import dataclasses
import pathlib
import signal
import socket
import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pytriton.constants import TRITON_LOCAL_IP
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.proxy.types import Request
from pytriton.triton import RemoteTriton, Triton, TritonConfig

ADD_SUB = "AddSub"
COUNTDOWN = "Countdown"

_Floats = NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a server on the loopback interface."""

    http: int
    grpc: int
    metrics: int

    @classmethod
    def free(cls) -> Ports:
        """Find three free ports."""
        sockets = [socket.socket() for _ in range(3)]
        try:
            for probe in sockets:
                probe.bind((TRITON_LOCAL_IP, 0))
            return cls(*(probe.getsockname()[1] for probe in sockets))
        finally:
            for probe in sockets:
                probe.close()

    def __str__(self) -> str:
        return f"HTTP {self.http}, gRPC {self.grpc}, metrics {self.metrics}"

    def config(self, log_file: pathlib.Path | None = None) -> TritonConfig:
        """Returns the settings of a server that can be reached from this machine only."""
        return TritonConfig(
            log_file=log_file,
            http_address=TRITON_LOCAL_IP,
            http_port=self.http,
            grpc_address=TRITON_LOCAL_IP,
            grpc_port=self.grpc,
            metrics_address=TRITON_LOCAL_IP,
            metrics_port=self.metrics,
        )


@batch
def _add_sub(a: _Floats, b: _Floats) -> dict[str, _Floats]:
    return {"add": a + b, "sub": a - b}


def _count_down(requests: list[Request]) -> Iterator[list[dict[str, NDArray[np.int32]]]]:
    (request,) = requests
    for number in range(int(request["start"].item()), 0, -1):
        yield [{"number": np.array([number], np.int32)}]


def bind_add_sub(triton: Triton | RemoteTriton, name: str = ADD_SUB) -> None:
    """Bind a model with one response per request."""
    a, b, add, sub = (
        Tensor(name=name, dtype=np.float32, shape=(1,)) for name in ("a", "b", "add", "sub")
    )
    triton.bind(name, _add_sub, [a, b], [add, sub], config=ModelConfig(max_batch_size=16))


def bind_models(triton: Triton) -> None:
    """Bind the models of the check."""
    bind_add_sub(triton)
    triton.bind(
        COUNTDOWN,
        _count_down,
        [Tensor(name="start", dtype=np.int32, shape=(1,))],
        [Tensor(name="number", dtype=np.int32, shape=(1,))],
        config=ModelConfig(batching=False, decoupled=True),
    )


def main(arguments: list[str]) -> None:
    """Serve until SIGINT."""
    # A shell lets background processes ignore this signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Triton(config=Ports(*map(int, arguments)).config()) as triton:
        bind_models(triton)
        triton.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
