# SPDX-License-Identifier: Apache-2.0
"""Files of traces of a server with bound models."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.model_config import ModelConfig, Tensor
from tests.e2e import http_client
from tests.trace_files import await_requests

ROW = np.ones((1, 1), np.float32)
COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
AROUND = [
    "HTTP_RECV_START",
    "HTTP_RECV_END",
    "REQUEST_START",
    "QUEUE_START",
    *COMPUTE,
    "REQUEST_END",
    "INFER_RESPONSE_COMPLETE",
    "HTTP_SEND_START",
    "HTTP_SEND_END",
]


@pytest.fixture
def port(run_triton, tmp_path):
    triton = run_triton(
        trace_config=[
            f"triton,file={tmp_path}/trace.json",
            "triton,log-frequency=1",
            "level=TIMESTAMPS",
            "level=TENSORS",
            "rate=1",
        ],
        cache_config=["local,size=1048576"],
    )
    row = {"dtype": np.float32, "shape": (-1,)}
    triton.bind(
        "M",
        lambda requests: [{"y": 2 * request["x"]} for request in requests],
        [Tensor(name="x", **row)],
        [Tensor(name="y", **row)],
        config=ModelConfig(response_cache=True),
    )
    return triton._config.http_port


def test_bound_model_is_traced(port, tmp_path):
    http_client.infer(port, "M", {"x": ROW})

    (request,) = await_requests(tmp_path, 1)
    assert request.names == AROUND
    assert [tensor["data"] for _, tensor in request.tensors] == ["1", "2"]


def test_answer_from_the_cache_was_not_computed(port, tmp_path):
    for count in (1, 2):
        http_client.infer(port, "M", {"x": ROW})
        await_requests(tmp_path, count)

    _, hit = await_requests(tmp_path, 2)
    assert hit.names == [name for name in AROUND if name not in COMPUTE]
    assert [tensor["data"] for _, tensor in hit.tensors] == ["1", "2"]
