# SPDX-License-Identifier: Apache-2.0
"""The compared models, served: `models.py KIND HTTP_PORT GRPC_PORT METRICS_PORT`.

KIND says which endpoints ask for the token. Everything here is what this package and NVIDIA
PyTriton both have, so that either serves it.
"""

from __future__ import annotations

import sys
import threading

import numpy as np

from pytriton.decorators import batch, first_value
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

TOKEN = "the-right-token"
RESTRICTED = {
    "open": None,  # the default: what changes the server asks for the token
    "unrestricted": [],
    "guarded": ["inference"],
    # The original does not start where health asks for it too.
    "private": ["inference", "metadata", "model-config", "model-repository"],
}
NUMBERS = [
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]
TYPES = {"bool": np.bool_, **{name: getattr(np, name) for name in NUMBERS}, "bytes": np.bytes_}
INSTANCES = 2  # the original now and then fails to start more
PAUSE_S = 5.0

_never = threading.Event()


@batch
def add_sub(a, b):
    return {"add": a + b, "sub": a - b}


@batch
def identity(x):
    return {"y": x}


@batch
def add_optional(a=None, b=None):
    given = [array for array in (a, b) if array is not None]
    return {"total": sum(given)}


@batch
@first_value("factor")
def multiply(x, factor):
    return {"y": x * factor}


@batch
def fail(x):
    raise ValueError("this model always fails")


def echo(requests):
    return [{f"{name}_out": array for name, array in r.items()} for r in requests]


def wait(requests):
    for request in requests:
        _never.wait(float(request["seconds"].max()))
    return [{"waited": request["seconds"]} for request in requests]


def tell_parameters(requests):
    def text(request):
        given = sorted((request.parameters or {}).items())
        return "; ".join(f"{name}={value!r}" for name, value in given).encode()

    return [{"told": np.array([[text(request)]], dtype=object)} for request in requests]


def stream_parameters(requests):
    yield tell_parameters(requests)


def answer_wrongly(requests):
    """Does what the script, the input's first element, says."""
    script = bytes(requests[0]["script"].ravel()[0]).decode()
    fine = np.zeros((1, 1), np.float32)
    answers = {
        "fine": [{"y": fine}],
        "nothing": None,
        "empty list": [],
        "empty dict": [{}],
        "two answers": [{"y": fine}, {"y": fine}],
        "a dict": {"y": fine},
        "unknown output": [{"z": fine}],
        "another output more": [{"y": fine, "z": fine}],
        "wrong dtype": [{"y": fine.astype(np.int64)}],
        "wrong shape": [{"y": np.zeros((1, 2, 3), np.float32)}],
        "no batch axis": [{"y": np.float32(0).reshape(())}],
        "more rows": [{"y": np.zeros((2, 1), np.float32)}],
        "a list for an array": [{"y": [[0.0]]}],
        "text": [{"y": np.array([["text"]])}],
        "a number for a name": [{1: fine}],
    }
    if script == "key error":
        raise KeyError("no such key")
    if script == "several lines":
        raise RuntimeError("first line\nsecond line: \u00e4\u00f6\u00fc")
    if script == "wordless":
        raise RuntimeError
    return answers[script]


def yield_once(requests):
    yield [{"y": request["x"]} for request in requests]


def yield_twice(requests):
    yield [{"y": request["x"]} for request in requests]
    yield [{"y": request["x"]} for request in requests]


def stream(requests):
    """Answers with each word of the script, but pauses at "pause" and raises at "fail"."""
    (request,) = requests
    for word in bytes(request["script"].ravel()[0]).decode().split():
        if word == "fail":
            raise ValueError("this stream fails")
        if word == "pause":
            _never.wait(PAUSE_S)
        else:
            yield [{"word": np.array([[word.encode()]], dtype=object)}]


def stream_plain(requests):
    for (answer,) in stream(requests):
        yield [{"word": answer["word"][0]}]


def stream_oddly(requests):
    fine = np.array([[b"word"]], dtype=object)
    script = bytes(requests[0]["script"].ravel()[0]).decode()
    yield {"unknown output": [{"other": fine}], "wrong dtype": [{"word": np.zeros((1, 1))}]}[script]


async def stream_by_coroutine(requests):
    for answers in stream(requests):
        yield answers


def tensor(name, dtype, *shape, optional=False):
    return Tensor(name=name, dtype=dtype, shape=shape, optional=optional)


X, Y = tensor("x", np.float32, -1), tensor("y", np.float32, -1)
A, B = tensor("a", np.float32, -1), tensor("b", np.float32, -1)
SUMS = [tensor("add", np.float32, -1), tensor("sub", np.float32, -1)]
OPTIONAL_A = tensor("a", np.float32, -1, optional=True)
OPTIONAL_B = tensor("b", np.float32, -1, optional=True)
SCRIPT, WORD = tensor("script", np.bytes_, 1), tensor("word", np.bytes_, 1)
TOLD = tensor("told", np.bytes_, 1)
SECONDS, WAITED = tensor("seconds", np.float32, 1), tensor("waited", np.float32, 1)
GRID = tensor("x", np.float32, 2, 3), tensor("y", np.float32, 2, 3)
TEXT = tensor("x", np.bytes_, -1), tensor("y", np.bytes_, -1)
FACTOR = tensor("factor", np.float32, 1)
TYPED = [tensor(name, dtype, -1) for name, dtype in TYPES.items()]
TYPED_OUT = [tensor(f"{name}_out", dtype, -1) for name, dtype in TYPES.items()]

PLAIN = ModelConfig(batching=False)
STREAMING = ModelConfig(max_batch_size=1, decoupled=True)  # one request in a call
PLAIN_STREAMING = ModelConfig(batching=False, decoupled=True)
CONFIGURED = ModelConfig(
    max_batch_size=32,
    batcher=DynamicBatcher(
        max_queue_delay_microseconds=200, preferred_batch_size=[4, 8], preserve_ordering=True
    ),
)

GUARDED_MODELS = (
    ("AddSub", add_sub, [A, B], SUMS, ModelConfig(max_batch_size=16)),
    ("Stream", stream, [SCRIPT], [WORD], STREAMING),
)
MODELS = (
    *GUARDED_MODELS,
    ("Configured", [add_sub, add_sub], [A, B], SUMS, CONFIGURED),
    ("Factor", multiply, [X, FACTOR], [Y], None),
    ("Failing", fail, [X], [Y], None),
    ("Grid", identity, [GRID[0]], [GRID[1]], ModelConfig(max_batch_size=8)),
    ("Once", yield_once, [X], [Y], None),
    ("Optional", add_optional, [OPTIONAL_A, OPTIONAL_B], [tensor("total", np.float32, -1)], None),
    ("Parameters", tell_parameters, [X], [TOLD], None),
    ("Plain", lambda requests: [{"y": r["x"]} for r in requests], [X], [Y], PLAIN),
    ("Slow", [wait] * INSTANCES, [SECONDS], [WAITED], PLAIN),
    ("SlowFutures", [wait] * INSTANCES, [SECONDS], [WAITED], PLAIN),
    ("SlowAsyncio", [wait] * INSTANCES, [SECONDS], [WAITED], PLAIN),
    ("Text", identity, [TEXT[0]], [TEXT[1]], ModelConfig(max_batch_size=16)),
    ("Twice", yield_twice, [X], [Y], None),
    ("Types", echo, TYPED, TYPED_OUT, ModelConfig(max_batch_size=8)),
    ("Wrong", answer_wrongly, [SCRIPT], [tensor("y", np.float32, 1)], None),
    ("CoroutineStream", stream_by_coroutine, [SCRIPT], [WORD], STREAMING),
    ("OddStream", stream_oddly, [SCRIPT], [WORD], STREAMING),
    ("ParametersStream", stream_parameters, [X], [TOLD], STREAMING),
    ("PauseStream", [stream] * INSTANCES, [SCRIPT], [WORD], STREAMING),
    ("PlainStream", stream_plain, [SCRIPT], [WORD], PLAIN_STREAMING),
    ("Unloaded_http", add_sub, [A, B], SUMS, ModelConfig(max_batch_size=16)),
    ("Unloaded_grpc", add_sub, [A, B], SUMS, ModelConfig(max_batch_size=16)),
)
LAST_MODEL = "Versioned"


def main():
    kind = sys.argv[1]
    http_port, grpc_port, metrics_port = map(int, sys.argv[2:])
    config = TritonConfig(
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        http_address="127.0.0.1",
        grpc_address="127.0.0.1",
        metrics_address="127.0.0.1",
        http_header_forward_pattern="x-.*",
        grpc_header_forward_pattern="x-.*",
    )
    security = TritonSecurityConfig(access_token=TOKEN, restricted_endpoints=RESTRICTED[kind])
    with Triton(config=config, security_config=security) as triton:
        for name, function, inputs, outputs, settings in (
            MODELS if kind == "open" else GUARDED_MODELS
        ):
            triton.bind(name, function, inputs=inputs, outputs=outputs, config=settings)
        outputs = [tensor("y", np.float32, 1)]
        triton.bind("StrictWrong", answer_wrongly, inputs=[SCRIPT], outputs=outputs, strict=True)
        triton.bind(LAST_MODEL, identity, inputs=[X], outputs=[Y], model_version=3)
        triton.serve()


if __name__ == "__main__":
    main()
