# SPDX-License-Identifier: Apache-2.0
"""Processes bind models into a `tritonserver`, beside and in front of those of its repositories."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import code, model

X, Y = (Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in "XY")
CALLS_BOUND = """
answer = pb_utils.InferenceRequest(
    model_name="bound", inputs=[pb_utils.Tensor("X", x)], requested_output_names=["Y"]
).exec()
y = answer.output_tensors()[0].as_numpy() * 10
"""
REPOSITORY = {
    "kept": {**model(code("y = x + 1")), "3/model.py": code("y = x + 3")},
    "caller": model(code(CALLS_BOUND)),
}
FLAGS = {
    "none": [],
    "explicit": ["--model-control-mode=explicit", "--load-model=*"],
    "poll": ["--model-control-mode=poll", "--repository-poll-secs=1"],
}


@batch
def negate(X):  # noqa: N803  the input's name
    return {"Y": -X}


def start(start_server, mode, *flags):
    return start_server(REPOSITORY, flags=[*FLAGS[mode], *flags]).await_ready()


@pytest.fixture(scope="module", params=["none", "explicit"])
def server(request, start_module_server):
    return start(start_module_server, request.param)


def join(server, token=None) -> RemoteTriton:
    return RemoteTriton(f"127.0.0.1:{server.http_port}", access_token=token)


def bind(remote, name="bound", infer_func=negate, version=1) -> None:
    remote.bind(name, infer_func, [X], [Y], version, ModelConfig(max_batch_size=1))


def test_bound_models_are_served_beside_the_others(server):
    before = server.index()
    with join(server) as remote:
        bind(remote)
        answers = [server.infer(name, 5.0) for name in ("bound", "kept", "caller")]
        row = server.index()["bound"]
        (account,) = server.get("/v2/models/bound/stats").json["model_stats"]

    assert answers == [[-5.0], [8.0], [-50.0]]
    assert row == {"name": "bound", "version": "1", "state": "READY"}
    assert account["inference_stats"]["success"]["count"] == 2
    assert server.index() == before
    assert not server.serves("bound")
    assert server.serves("kept")
    assert server.get("/v2/health/ready").status == 200


def test_hidden_model_changes_unseen(start_server):
    server = start(start_server, "poll")
    with join(server) as remote:
        bind(remote, "kept")
        loads = server.output.count("successfully loaded 'kept'")
        server.write("kept", {"3/model.py": code("print('changed'); y = x * 7")})
        assert eventually(lambda: server.output.count("successfully loaded 'kept'") > loads)
        assert server.infer("kept", 5.0) == [-5.0]

    assert server.infer("kept", 5.0) == [35.0]


def test_end_of_the_server_waits_for_bound_models(start_server):
    server = start(start_server, "none")
    running, opened = threading.Event(), threading.Event()

    def wait(requests):
        running.set()
        assert opened.wait(DEADLINE_S)
        return [{"Y": -request["X"]} for request in requests]

    with join(server) as remote, ThreadPoolExecutor(1) as threads:
        bind(remote, infer_func=wait)
        answer = threads.submit(server.infer, "bound", 5.0)
        assert running.wait(DEADLINE_S)
        server.signal()
        assert eventually(lambda: "Waiting for in-flight requests" in server.output)
        opened.set()
        remote.serve()

        assert answer.result() == [-5.0]
        assert not remote.is_connected()
    assert server.exit_code() == 0
