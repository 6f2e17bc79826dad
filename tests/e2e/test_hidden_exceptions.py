# SPDX-License-Identifier: Apache-2.0
"""Texts of exceptions of models reach no client by any way, if they are hidden."""

from __future__ import annotations

import json
import re

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pytriton.decorators import batch, model
from pytriton.triton import Triton, TritonConfig
from tests.e2e import http_client
from tests.e2e.conftest import new_ports
from tests.e2e.hosts import Host
from tests.e2e.waiting import DEADLINE_S

pytestmark = pytest.mark.both_front_end_modes

SECRET = "/secret/path"
HIDDEN = re.compile(r"model '\w+' failed; the server's log says why \(failure [0-9a-f]{8}\)")
ONE = np.ones((1, 1), np.float32)
CONFIG = """
max_batch_size: 4
input {{ name: "x" data_type: TYPE_FP32 dims: -1 }}
output {{ name: "y" data_type: TYPE_FP32 dims: -1 }}
{}
"""
MODEL = f"""
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        raise OSError("{SECRET}")
"""
CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        call = pb_utils.InferenceRequest(
            model_name="file", requested_output_names=["y"], inputs=requests[0].inputs()
        )
        raise pb_utils.TritonModelException(call.exec().error().message())
"""
STEPS = """
platform: "ensemble"
ensemble_scheduling {
  step {
    model_name: "file" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }
  }
}
"""


@batch
def coupled(x):
    raise ValueError(SECRET)


async def coroutine(requests):
    raise ValueError(SECRET)


def generator(requests):
    yield [{"y": ONE} for _ in requests]
    raise ValueError(SECRET)


@model(openai="chat,completions")
def talks(prompt: str) -> str:
    raise ValueError(SECRET)


def write_models(folder):
    for name, config, code in (
        ("file", 'backend: "python"', MODEL),
        ("caller", 'backend: "python"', CALLER),
        ("steps", STEPS, None),
    ):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG.format(config))
        if code is not None:
            (folder / name / "1" / "model.py").write_text(code)
    return folder


@pytest.fixture(scope="module")
def running_host(front_end_mode, tmp_path_factory):
    ports = new_ports()
    repository = write_models(tmp_path_factory.mktemp("models"))
    config = TritonConfig(**ports, hide_exceptions=True, model_repository=repository)
    with Triton(config=config) as triton:
        made = Host(triton, ports)
        made.bind(coupled, name="coupled")
        made.bind(coroutine, name="coroutine")
        made.bind(generator, name="generator", decoupled=True)
        triton.bind(talks)
        yield made


@pytest.fixture
def host(running_host):
    return running_host


def post(host, path, document):
    return http_client.call(host.port, path, json.dumps(document).encode())


def assert_hidden(text):
    assert SECRET not in text
    assert HIDDEN.search(text), text


@pytest.mark.parametrize("name", ["coupled", "coroutine", "file", "caller", "steps"])
def test_exception_is_hidden_over_both_protocols(host, name):
    generated = post(host, f"/v2/models/{name}/generate", {"x": [[1]]})
    channel = grpc.insecure_channel(f"127.0.0.1:{host.grpc_port}")
    with channel, pytest.raises(grpc.RpcError) as failure:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
            message(name), timeout=DEADLINE_S
        )

    status, text = host.error(name, x=ONE)
    assert status == generated.status == 500
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    for each in (text, generated.error, failure.value.details()):
        assert_hidden(each)


def message(name):
    request = service_pb2.ModelInferRequest(model_name=name)
    request.inputs.add(name="x", datatype="FP32", shape=ONE.shape)
    request.raw_input_contents.append(ONE.tobytes())
    return request


def test_exception_half_way_is_hidden_in_streams(host):
    events = post(host, "/v2/models/generator/generate_stream", {"x": [[1]]}).body.decode()
    with grpc.insecure_channel(f"127.0.0.1:{host.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answers = list(stub.ModelStreamInfer(iter([message("generator")]), timeout=DEADLINE_S))

    assert_hidden(events)
    assert_hidden("".join(answer.error_message for answer in answers))


@pytest.mark.parametrize("streams", [False, True])
def test_exception_is_hidden_on_openai_routes(host, streams):
    chat = {"model": "talks", "messages": [{"role": "user", "content": "hello"}]}
    for path, document in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"model": "talks", "prompt": "hello"}),
    ):
        assert_hidden(post(host, path, {**document, "stream": streams}).body.decode())


def test_value_that_a_function_cannot_take_is_told(host):
    answer = post(host, "/v2/models/talks/generate", {"prompt": 7})

    assert answer.status == 400
    assert "prompt" in answer.error
