# SPDX-License-Identifier: Apache-2.0
"""Usage: serve_models.py HTTP_PORT [--cache | --onnx | --ray | JSON]   (gRPC on the next port).

Serves the measured models with whichever `pytriton` the interpreter has: ours or NVIDIA's. With
--cache it serves AddSub and AddSubCached instead, the same function without and with the cache,
with --onnx the ONNX file of the repository, with --ray AddSub as an actor, with --users the models
that get requests as users send them. JSON has more fields of TritonConfig, and may have the
access_token of what is restricted, and the number of instances of AddSub.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

# So small that it is full within a second: a miss then pays for what it pushes out, too.
CACHE_BYTES = 2**20


@batch
def add_sub(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    return {"add": a + b, "sub": a - b}


@batch
def identity(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": x}


def repeat(requests: list[Any]) -> Iterator[list[dict[str, np.ndarray]]]:
    """A response for each element of IN; nobody here asks for a pause, so the rest is not read."""
    (request,) = requests
    values = request["IN"]
    for index in range(values.size):
        yield [{"IDX": np.array([index], np.uint32), "OUT": values[index : index + 1]}]


def tensor(name: str, dtype: type[np.generic | bytes], size: int) -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=(size,))


def bind_add_sub(
    triton: Triton,
    name: str,
    config: ModelConfig,
    dtype: type[np.generic] = np.float32,
    size: int = 1,
    instances: int = 1,
) -> None:
    triton.bind(
        model_name=name,
        infer_func=[add_sub] * instances,
        inputs=[tensor("a", dtype, size), tensor("b", dtype, size)],
        outputs=[tensor("add", dtype, size), tensor("sub", dtype, size)],
        config=config,
    )


def bind_measured(triton: Triton, instances: int) -> None:
    bind_add_sub(triton, "AddSub", ModelConfig(max_batch_size=128), instances=instances)
    triton.bind(
        model_name="Ident",
        infer_func=identity,
        inputs=[tensor("x", np.float32, -1)],
        outputs=[tensor("y", np.float32, -1)],
        config=ModelConfig(max_batch_size=8),
    )
    triton.bind(
        model_name="repeat_int32",
        infer_func=repeat,
        inputs=[
            tensor("IN", np.int32, -1),
            tensor("DELAY", np.uint32, -1),
            tensor("WAIT", np.uint32, 1),
        ],
        outputs=[tensor("IDX", np.uint32, 1), tensor("OUT", np.int32, 1)],
        config=ModelConfig(batching=False, decoupled=True),
    )


def bind_users(triton: Triton, instances: int) -> None:
    import ml_dtypes  # noqa: PLC0415 - NVIDIA's, which has no BF16, does not install it

    bind_add_sub(triton, "AddSub", ModelConfig(max_batch_size=128), instances=instances)
    bind_add_sub(triton, "AddSubHalf", ModelConfig(max_batch_size=128), np.float16)
    bind_add_sub(triton, "AddSubAny", ModelConfig(max_batch_size=128), size=-1)
    for name, dtype in (("Text", bytes), ("EchoBrain", ml_dtypes.bfloat16)):
        triton.bind(
            model_name=name,
            infer_func=identity,
            inputs=[tensor("x", dtype, 1)],
            outputs=[tensor("y", dtype, 1)],
            config=ModelConfig(max_batch_size=128),
        )


def bind_cached(triton: Triton) -> None:
    bind_add_sub(triton, "AddSub", ModelConfig(max_batch_size=128))
    bind_add_sub(triton, "AddSubCached", ModelConfig(max_batch_size=128, response_cache=True))


def bind_onnx(triton: Triton) -> None:
    """A session of one thread, as the models of the repository have it."""
    import onnxruntime as ort  # noqa: PLC0415 - the other models do not need it

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    file = pathlib.Path(__file__).parent / "model_repository" / "Mlp" / "1" / "model.onnx"
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    @batch
    def run(x: np.ndarray) -> dict[str, np.ndarray]:
        (y,) = session.run(["y"], {"x": x})
        return {"y": y}

    triton.bind(
        model_name="Mlp",
        infer_func=run,
        inputs=[tensor("x", np.float32, 16)],
        outputs=[tensor("y", np.float32, 16)],
        config=ModelConfig(max_batch_size=16_384),
    )


def bind_on_ray(triton: Triton) -> None:
    """One actor of the cluster that RAY_ADDRESS names."""
    from pytriton.model_config import Ray  # noqa: PLC0415 - only ours has it

    triton.bind(
        model_name="AddSub",
        infer_func="serve_models:add_sub",
        inputs=[tensor("a", np.float32, 1), tensor("b", np.float32, 1)],
        outputs=[tensor("add", np.float32, 1), tensor("sub", np.float32, 1)],
        config=ModelConfig(max_batch_size=128),
        instances=Ray(count=1),
    )


def main() -> None:
    port, *options = sys.argv[1:]
    http_port = int(port)
    fields: dict[str, Any] = next(
        (json.loads(option) for option in options if option.startswith("{")), {}
    )
    token, instances = fields.pop("access_token", None), fields.pop("instances", 1)
    security = TritonSecurityConfig(access_token=token) if token else None
    config = TritonConfig(
        http_port=http_port, grpc_port=http_port + 1, metrics_port=http_port + 2, **fields
    )
    if "--cache" in options:
        config.cache_config = [f"local,size={CACHE_BYTES}"]
    with Triton(config=config, security_config=security) as triton:
        if "--cache" in options:
            bind_cached(triton)
        elif "--onnx" in options:
            bind_onnx(triton)
        elif "--ray" in options:
            bind_on_ray(triton)
        elif "--users" in options:
            bind_users(triton, instances)
        else:
            bind_measured(triton, instances)
        triton.serve()


if __name__ == "__main__":
    main()
