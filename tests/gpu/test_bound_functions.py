# SPDX-License-Identifier: Apache-2.0
"""Bound functions whose inputs are in GPU memory, with torch and cupy."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tests.free_ports import free_ports

pytestmark = pytest.mark.e2e
COUNT = 1 << 20


def torch_function(torch):
    @batch
    def double(x):
        assert torch.as_tensor(x, device="cuda").data_ptr() == x.address
        return {"y": torch.from_dlpack(x) * 2}

    return double


def cupy_function(cupy):
    @batch
    def double(x):
        return {"y": cupy.asarray(x) * 2}

    return double


FUNCTIONS = {"torch": torch_function, "cupy": cupy_function}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_computes_on_the_gpu(name):
    library = pytest.importorskip(name)
    http, grpc, metrics = free_ports(3)
    config = TritonConfig(http_port=http, grpc_port=grpc, metrics_port=metrics)
    with Triton(config=config) as triton:
        tensor = {"shape": (-1,), "dtype": np.float32}
        triton.bind(
            "m",
            FUNCTIONS[name](library),
            inputs=[Tensor(name="x", device="cuda", **tensor)],
            outputs=[Tensor(name="y", **tensor)],
            config=ModelConfig(max_batch_size=4),
        )
        triton.run()
        with ModelClient(f"localhost:{http}", "m") as client:
            for start in range(20):
                row = (np.arange(COUNT, dtype=np.float32) + start).reshape(1, -1)

                assert np.array_equal(client.infer_batch(x=row)["y"], row * 2)
