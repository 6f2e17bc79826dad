# SPDX-License-Identifier: Apache-2.0
"""Mistakes of users, one for each line with a mark, that type checkers have to report."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

import pytriton
import pytriton.client
import tritonserver
from pytriton.client import AsyncioModelClient, DecoupledModelClient, ModelClient
from pytriton.inprocess import Server
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.testing import ModelHarness
from pytriton.triton import Triton, TritonConfig


def function(requests: list[Any]) -> list[Any]:
    return requests


pytriton.Tritn  # wrong: there is no such name
pytriton.client.ModelClint  # wrong: there is no such client
tritonserver.Sever  # wrong: there is no such name
TENSORS = [Tensor(dtype=np.float32, shape=(-1,))]
Tensor(dtype=np.float32, shape="1")  # wrong: a text is no shape
Tensor(np.float32)  # wrong: the type is not first
ModelConfig(max_batch_size="8")  # wrong: a text is no number
ModelConfig(max_batch=8)  # wrong: there is no such setting
ModelConfig(batcher=True)  # wrong: a batcher is an object
DynamicBatcher(preferred_batch_size=8)  # wrong: a list of sizes
TritonConfig(http_port="8000.5", nothing=1)  # wrong: there is no such setting
triton = Triton(TritonConfig())  # wrong: it has to be named
triton = Triton(config={"http_port": 1})  # wrong: a dict is no configuration
triton.bind("M", 3, TENSORS, TENSORS)  # wrong: a number is not called
triton.bind("M", function, TENSORS, [np.float32])  # wrong: outputs are tensors
triton.bind(1, function, TENSORS, TENSORS)  # wrong: a number is no name
triton.serving()  # wrong: there is no such method
client = ModelClient("localhost")  # wrong: the model is missing
client = ModelClient("localhost", "M", timeout=3)  # wrong: there is no such argument
client.infer_batch(np.zeros(1)).shape  # wrong: outputs come by name
DecoupledModelClient("localhost", "M").infer_batch(np.zeros(1))["OUT"]  # wrong: it iterates


async def ask() -> None:
    answer = AsyncioModelClient("localhost", "M").infer_batch(np.zeros(1))
    answer["OUT"]  # wrong: it has to be awaited


def execute(request: pb_utils.InferenceRequest) -> None:
    pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()  # wrong: it may be missing
    pb_utils.get_input_tensor_by_name("IN", request)  # wrong: the request is first
    pb_utils.Tensor(np.zeros(1), "OUT")  # wrong: the name is first
    pb_utils.InferenceResponse(error="no")  # wrong: a text is no error
    request.get_response_sender().send(1)  # wrong: a number is no response


Server().model(3)  # wrong: a number is no name
with ModelHarness("model.py") as harness:
    harness.execute([1, 2])  # wrong: inputs have names
