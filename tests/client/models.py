# SPDX-License-Identifier: Apache-2.0
"""serve: python models.py HTTP_PORT   (gRPC on the next port, metrics on the one after).

The models that the clients' tests call. They use what this package and NVIDIA PyTriton both have,
so that either serves them.
"""

from __future__ import annotations

import sys
import threading

import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

PAUSE = 10_000

_open_gates: set[int] = set()
_gates_with_guests: set[int] = set()
_changed = threading.Condition()


@batch
def add_sub(a, b):
    return {"add": a + b, "sub": a - b}


@batch
def identity(x):
    return {"y": x}


@batch
def add_optional(a, b=None):
    return {"total": a if b is None else a + b}


@batch
def fail(x):
    raise ValueError("this model always fails")


def pass_gate(number):
    """Wait until somebody has asked the model `OpenGate` for this gate; it then stays open."""
    _gates_with_guests.add(number)
    with _changed:
        _changed.wait_for(lambda: number in _open_gates)


@batch
def wait_at_gate(gate):
    for number in gate.ravel().tolist():
        pass_gate(number)
    return {"passed": gate}


@batch
def open_gate(gate):
    with _changed:
        _open_gates.update(gate.ravel().tolist())
        _changed.notify_all()
    return {"opened": gate}


@batch
def has_guest(gate):
    return {"is_there": np.isin(gate, list(_gates_with_guests)).astype(np.int32)}


def tell_parameters(requests):
    def text(request):
        pairs = sorted((name, str(value)) for name, value in request.parameters.items())
        return ";".join("=".join(pair) for pair in pairs).encode()

    return [{"parameters": np.array([[text(request)]], dtype=object)} for request in requests]


def count(requests):
    """Answers as often as `n` says. Below zero it fails then.

    With PAUSE and the number of a gate it answers twice, and waits at that gate after the first.
    """
    n = int(requests[0]["n"].ravel()[0])
    for value in range(2 if n >= PAUSE else abs(n)):
        yield [{"value": np.array([[value]], np.int32)}]
        if n >= PAUSE:
            pass_gate(n - PAUSE)
    if n < 0:
        raise ValueError("this stream fails")


def count_plain(requests):
    n = int(requests[0]["n"].ravel()[0])
    for value in range(n):
        yield [{"value": np.array([value], np.int32)}]


def tensor(name, dtype, *shape, optional=False):
    return Tensor(name=name, dtype=dtype, shape=shape, optional=optional)


def bind_all(triton):
    x, y = tensor("x", np.float32, -1), tensor("y", np.float32, -1)
    text_x, text_y = tensor("x", object, -1), tensor("y", object, -1)
    plain = ModelConfig(batching=False)
    streaming = ModelConfig(max_batch_size=1, decoupled=True)
    a, b = tensor("a", np.float32, -1), tensor("b", np.float32, -1)
    optional_b = tensor("b", np.float32, -1, optional=True)
    n, value = tensor("n", np.int32, 1), tensor("value", np.int32, 1)
    sums = [tensor("add", np.float32, -1), tensor("sub", np.float32, -1)]
    gate, passed, opened, is_there = (
        tensor(name, np.int32, 1) for name in ("gate", "passed", "opened", "is_there")
    )
    told = tensor("parameters", object, 1)
    for name, function, inputs, outputs, config in (
        ("AddSub", add_sub, [a, b], sums, ModelConfig(max_batch_size=16)),
        ("Plain", lambda requests: [{"y": r["x"]} for r in requests], [x], [y], plain),
        ("Text", identity, [text_x], [text_y], ModelConfig(max_batch_size=16)),
        ("Large", identity, [x], [y], ModelConfig(max_batch_size=4)),
        ("Optional", add_optional, [a, optional_b], [tensor("total", np.float32, -1)], None),
        ("Failing", fail, [x], [y], None),
        ("Gated", wait_at_gate, [gate], [passed], None),
        ("OpenGate", open_gate, [gate], [opened], None),
        ("HasGuest", has_guest, [gate], [is_there], None),
        ("Parameters", tell_parameters, [x], [told], None),
        ("Counter", count, [n], [value], streaming),
        ("PlainCounter", count_plain, [n], [value], ModelConfig(batching=False, decoupled=True)),
    ):
        triton.bind(name, function, inputs=inputs, outputs=outputs, config=config)


def main():
    port = int(sys.argv[1])
    config = TritonConfig(
        http_port=port,
        grpc_port=port + 1,
        metrics_port=port + 2,
        http_header_forward_pattern="x-.*",
        grpc_header_forward_pattern="x-.*",
    )
    with Triton(config=config) as triton:
        bind_all(triton)
        triton.serve()


if __name__ == "__main__":
    main()
