# SPDX-License-Identifier: Apache-2.0
"""Models of a repository whose instances run elsewhere: all that models do works from there, too.

Plain processes that connect over TCP stand in for the actors of a cluster.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

import tritonserver
from pytriton.serving.server import core as core_module
from tests.e2e.waiting import DEADLINE_S
from tests.executor.remote.plain_cluster import PlainCluster
from tests.executor.remote.plain_starter import NODE
from tests.framework_backends.onnxruntime import onnx_models
from tests.native_backend import building
from tests.repository_e2e.model_files import (
    DECOUPLED,
    code,
    config,
    decoupled_code,
    model,
    write_model,
)

LOCAL = 'parameters { key: "EXECUTOR" value { string_value: "local" } }\n'
ON_RAY = LOCAL.replace('"local"', '"ray"')
TWO = "instance_group [ { count: 2 } ]\n"
CALL = """
call = pb_utils.InferenceRequest(
    model_name="{0}", requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", x)]
)
answer = call.exec()
if answer.has_error():
    raise pb_utils.TritonModelException(answer.error().message())
y = answer.output_tensors()[0].as_numpy() + 1
"""
PROCESS = "y = np.full_like(x, os.getpid())"
SUM = """
self.sums = getattr(self, "sums", {})
key = request.correlation_id()
self.sums[key] = self.sums.get(key, 0) + x.sum()
y = np.full_like(x, self.sums[key])
"""
COMPLETED = code(
    "y = x * 2",
    methods="""
@staticmethod
def auto_complete_config(config):
    config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
    config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
    config.set_max_batch_size(8)
    return config
""",
)
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"
STEP = 'input_map {{ key: "X" value: "{0}" }} output_map {{ key: "Y" value: "{1}" }}'
ENSEMBLE = f"""
platform: "ensemble"
max_batch_size: 8
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
ensemble_scheduling {{
  step {{ model_name: "near" model_version: -1 {STEP.format("IN", "between")} }}
  step {{ model_name: "twice" model_version: -1 {STEP.format("between", "OUT")} }}
}}
"""


def write_models(folder):
    write_model(folder / "twice", model(COMPLETED, ON_RAY + TWO))
    write_model(folder / "near", model(code("y = x + 0.5"), config(LOCAL)))
    write_model(folder / "far_calls_near", model(code(CALL.format("near")), config(ON_RAY)))
    write_model(folder / "near_calls_far", model(code(CALL.format("far_calls_near"))))
    write_model(folder / "process", model(code(PROCESS), config(ON_RAY)))
    write_model(folder / "sums", model(code(SUM), config(SEQUENCES + ON_RAY)))
    stream = "for number in range(int(x[0, 0])): send([[number]])"
    write_model(folder / "stream", model(decoupled_code(stream), config(DECOUPLED + ON_RAY)))
    write_model(folder / "steps", {"config.pbtxt": ENSEMBLE, "1/empty": ""})
    onnx_models.write(onnx_models.doubling(), folder / "onnx" / "1" / "model.onnx")
    one = "instance_group [ { count: 1 kind: KIND_CPU } ]"
    (folder / "onnx" / "config.pbtxt").write_text(f'backend: "onnxruntime"\n{one}\n{ON_RAY}')
    broken = code(initialize="raise ValueError('no weights')")
    write_model(folder / "broken", model(broken, config(ON_RAY)))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture(scope="module")
def clusters():
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            core_module,
            "_make_ray",
            lambda options, loop: made.append(PlainCluster(options, loop)) or made[-1],
        )
        yield made


@pytest.fixture(scope="module")
def server(repository, clusters):
    before = set(psutil.Process().children(recursive=True))
    names = sorted(path.name for path in repository.iterdir() if path.name != "broken")
    server = tritonserver.Server(
        model_repository=str(repository),
        model_control_mode=tritonserver.ModelControlMode.EXPLICIT,
        startup_models=names,
        backend_directory="" if building.missing() else str(building.backend_directory()),
        exit_timeout=5,
    )
    server.start(wait_until_ready=True)
    yield server
    server.stop()
    until(lambda: set(psutil.Process().children(recursive=True)) <= before)


def until(condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def rows(server, name, *values, key="X", **fields):
    inputs = {key: np.array([values], np.float32)}
    answers = server.model(name).infer(inputs=inputs, **fields)
    return [
        np.from_dlpack(tensor).tolist()[0]
        for answer in answers
        for tensor in answer.outputs.values()
    ]


def test_configuration_is_completed_elsewhere_and_the_model_answers(server, clusters):
    assert rows(server, "twice", 1.0, 2.5) == [[2.0, 5.0]]
    orders = {order.spec.instance_name: order.spec for order in clusters[0].starter.orders}
    assert {"twice_auto_complete", "twice_0_0", "twice_0_1"} <= orders.keys()
    assert orders["twice_0_1"].placement.num_cpus == 1.0
    assert (orders["twice_0_1"].model, orders["twice_0_1"].version) == ("twice", 1)
    assert "near_0_0" not in orders


def test_large_tensors_cross_the_connection(server):
    values = np.arange(3 << 18, dtype=np.float32)
    (answer,) = server.model("twice").infer(inputs={"X": values[np.newaxis]})

    assert np.array_equal(np.from_dlpack(answer.outputs["Y"])[0], values * 2)


def test_models_call_each_other_from_here_to_there_and_back(server):
    assert rows(server, "near_calls_far", 1.0) == [[3.5]]


def test_responses_of_a_decoupled_model_arrive_one_by_one(server):
    assert rows(server, "stream", 4.0) == [[0.0], [1.0], [2.0], [3.0]]


def test_sequence_stays_with_its_instance(server):
    sums = [
        rows(server, "sums", number, correlation_id=7, flags=flags)
        for number, flags in ((1.0, 1), (2.0, 0), (3.0, 2))
    ]

    assert sums == [[[1.0]], [[3.0]], [[6.0]]]


def test_ensemble_has_steps_here_and_there(server):
    assert rows(server, "steps", 1.0, key="IN") == [[3.0]]


def test_backend_of_ours_runs_there(server):
    assert rows(server, "onnx", 1.0, 4.0, key="x") == [[2.0, 8.0]]


@pytest.mark.skipif(bool(building.missing()), reason=building.missing())
def test_compiled_backend_runs_there(server, repository, clusters):
    settings = (
        'backend: "identity"\nmax_batch_size: 8\n'
        'input [ { name: "FP32" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        'output [ { name: "OUT_FP32" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
    )
    write_model(repository / "compiled", {"config.pbtxt": settings + ON_RAY, "1/empty": ""})
    server.load("compiled")

    assert rows(server, "compiled", 1.0, 4.0, key="FP32") == [[1.0, 4.0]]
    assert clusters[0].starter.orders[-1].spec.instance_name == "compiled_0"
    server.unload("compiled", wait_until_unloaded=True)


def test_model_that_cannot_be_loaded_there_names_the_node(server):
    with pytest.raises(tritonserver.TritonError) as caught:
        server.load("broken")

    assert f"On node '{NODE}': " in str(caught.value)
    assert "ValueError: no weights" in str(caught.value)


def test_file_that_is_not_there_is_named_with_the_way_out(server, repository, monkeypatch):
    path = repository / "broken" / "1" / "model.py"
    monkeypatch.setattr(  # the node has other files than the server
        "pytriton.serving.repository.loading.python_loader.code_path",
        lambda plan, code: str(code.path).replace("/1/", "/elsewhere/"),
    )

    with pytest.raises(tritonserver.TritonError) as caught:
        server.load("broken")

    missing = str(path).replace("/1/", "/elsewhere/")
    assert (
        f"On node '{NODE}': '{missing}' cannot be read there: the files of a model that runs on "
        "Ray have to be in a folder that all nodes share, under the same path"
    ) in str(caught.value)


def test_instance_that_is_killed_is_replaced(server):
    ((first,),) = rows(server, "process", 0.0)
    os.kill(int(first), signal.SIGKILL)

    def has_other():
        try:
            return rows(server, "process", 0.0) != [[first]]
        except tritonserver.TritonError:
            return False

    until(has_other)


def test_reload_loses_no_request(server, repository):
    answers, is_over = [], threading.Event()

    def ask():
        while not is_over.is_set():
            answers.append(rows(server, "twice", 1.0)[0][0])

    asking = ThreadPoolExecutor(1).submit(ask)
    try:
        write_model(repository / "twice", model(COMPLETED.replace("x * 2", "x * 3"), ON_RAY + TWO))
        server.load("twice")
        until(lambda: 3.0 in answers or asking.done())
    finally:
        is_over.set()

    assert asking.result(DEADLINE_S) is None
    assert set(answers) <= {2.0, 3.0}
    assert sorted(answers) == answers
