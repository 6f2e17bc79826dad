# SPDX-License-Identifier: Apache-2.0
"""The models that tests of commands ask, bound by any PyTriton: `python models.py HTTP_PORT`."""

import sys
import threading

import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

cancelled = threading.Event()  # set when the client of an endless stream is gone


@batch
def add_sub(a, b):
    return {"add": a + b, "sub": a - b}


def count(requests):
    for value in range(int(requests[0]["n"][0])):
        yield [{"value": np.array([value], np.int32)}]


def tell(requests):
    for word in requests[0]["prompt"].item().decode().split():
        yield [{"word": np.array([f"{word} ".encode()], object)}]


def endless(requests):
    try:
        value = 0
        while True:
            yield [{"value": np.array([value], np.int32)}]
            value += 1
    finally:
        cancelled.set()


@batch
def echo(pair, texts=None):
    none = np.full((len(pair), 1), b"none", object)
    return {"pair": pair, "texts": none if texts is None else texts}


def tensor(name, dtype, size, **options):
    return Tensor(name=name, dtype=dtype, shape=(size,), **options)


def bind_all(triton):
    stream = ModelConfig(batching=False, decoupled=True)
    a, b = (tensor(name, np.float32, 1) for name in ("a", "b"))
    add, sub = (tensor(name, np.float32, 1) for name in ("add", "sub"))
    value = tensor("value", np.int32, 1)
    triton.bind("AddSub", add_sub, [a, b], [add, sub], config=ModelConfig(max_batch_size=8))
    triton.bind("Count", count, [tensor("n", np.int32, 1)], [value], config=stream)
    triton.bind("Endless", endless, [tensor("n", np.int32, 1)], [value], config=stream)
    text = tensor("prompt", np.bytes_, 1)
    triton.bind("Tell", tell, [text], [tensor("word", np.bytes_, 1)], config=stream)
    pair, texts = tensor("pair", np.int8, 2), tensor("texts", np.bytes_, -1)
    optional = tensor("texts", np.bytes_, -1, optional=True)
    triton.bind("Echo", echo, [pair, optional], [pair, texts])


if __name__ == "__main__":
    port = int(sys.argv[1])
    config = TritonConfig(http_port=port, grpc_port=port + 1, metrics_port=port + 2)
    with Triton(config=config) as server:
        bind_all(server)
        server.serve()
