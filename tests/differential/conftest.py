# SPDX-License-Identifier: Apache-2.0
"""Our server with the compared models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests.differential.exchange import ACCESS_TOKEN
from tests.differential.model_table import MODELS, Model, Port
from tests.free_ports import free_ports

NUMPY_NAMES = {"FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "bfloat16"}


def numpy_dtype(datatype: str) -> Any:
    return bytes if datatype == "BYTES" else NUMPY_NAMES.get(datatype, datatype.lower())


def declare(port: Port) -> Tensor:
    dtype = numpy_dtype(port.datatype)
    return Tensor(name=port.name, dtype=dtype, shape=port.dims, optional=port.optional)


def infer_function(model: Model) -> Any:
    """The model's function in the form that `bind` takes: a list of requests at a time."""

    def answer(request: Any) -> dict[str, np.ndarray[Any, Any]]:
        return model.function(dict(request.data), dict(request.parameters or {}))

    def infer(requests: list[Any]) -> list[Any]:
        return [answer(request) for request in requests]

    def stream(requests: list[Any]) -> Iterator[list[Any]]:
        yield infer(requests)

    return stream if model.decoupled else infer


def bind(triton: Triton, model: Model, function: Any) -> None:
    triton.bind(
        model_name=model.name,
        infer_func=function,
        inputs=[declare(port) for port in model.inputs],
        outputs=[declare(port) for port in model.outputs],
        config=ModelConfig(
            batching=model.max_batch_size > 0,
            max_batch_size=max(model.max_batch_size, 1),
            decoupled=model.decoupled,
        ),
    )


@pytest.fixture(scope="session")
def our_port() -> Iterator[int]:
    """The HTTP port of our server."""
    http, grpc, metrics = free_ports(3)
    config = TritonConfig(
        http_port=http,
        grpc_port=grpc,
        metrics_port=metrics,
        http_address="127.0.0.1",
        landing_page="browsers",  # as for tritonserver: others get Triton's answer
    )
    security = TritonSecurityConfig(access_token=ACCESS_TOKEN)
    with Triton(config=config, security_config=security) as triton:
        for model in MODELS:
            bind(triton, model, infer_function(model))
        triton.run()
        yield http
