# SPDX-License-Identifier: Apache-2.0
"""Ensembles of repositories: loaded with their steps, replaced and unloaded with them."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton
from tests.e2e.http_client import InferFailedError, call
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import HELD, HOLD, code, config, ensemble, model

X, Y = (Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in "XY")
PLUS, TWICE = model(code("y = x + 1")), model(code("y = x * 2"))
STEPS = {"plus": PLUS, "twice": TWICE}
LOADS = """
step = pb_utils.InferenceRequest(
    model_name="pipe", inputs=[pb_utils.Tensor("X", x)], requested_output_names=["Y"]
)
pb_utils.load_model("pipe")
y = step.exec().output_tensors()[0].as_numpy()
pb_utils.unload_model("pipe", unload_dependents=True)
"""
MISSING = "ensemble pipe contains models that are not available or ambiguous: bound"


def state(server, name: str) -> tuple[str, str]:
    row = server.index()[name]
    return row.get("state", ""), row.get("reason", "")


def start_explicit(start_server, models, *names: str):
    flags = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in names)]
    return start_server(models, flags=flags).await_ready()


def test_start_loads_ensembles_whatever_their_names_and_the_table_has_them(start_server):
    models = {**STEPS, "a_nested": ensemble("pipe", "plus"), "pipe": ensemble("plus", "twice")}
    server = start_server(models).await_ready()

    assert server.infer("pipe", 1.0, 2.0) == [4.0, 6.0]
    assert server.infer("a_nested", 1.0) == [5.0]
    assert "| a_nested | 1       | READY  |" in server.stdout
    assert "| ensemble" not in server.stdout  # it is no backend
    assert len(server.workers()) == 2


def test_configuration_and_metadata_of_an_ensemble_are_tritons(start_server):
    server = start_server({**STEPS, "pipe": ensemble("plus", "twice:1")}).await_ready()

    shown = server.get("/v2/models/pipe/config").json
    assert (shown["platform"], shown["backend"]) == ("ensemble", "")
    assert shown["version_policy"] == {"latest": {"num_versions": 1}}
    assert shown["model_transaction_policy"] == {"decoupled": False}
    assert shown["instance_group"] == shown["model_warmup"] == []
    assert shown["default_model_filename"] == ""
    assert not {"optimization", "dynamic_batching"} & shown.keys()
    assert shown["ensemble_scheduling"]["step"] == [
        {
            "model_name": "plus",
            "model_version": -1,
            "input_map": {"X": "X"},
            "output_map": {"Y": "t1"},
            "model_namespace": "",
        },
        {
            "model_name": "twice",
            "model_version": 1,
            "input_map": {"X": "t1"},
            "output_map": {"Y": "Y"},
            "model_namespace": "",
        },
    ]
    metadata = server.get("/v2/models/pipe").json
    assert metadata["platform"] == "ensemble"
    assert metadata["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, -1]}]


def test_metrics_have_ensembles_and_the_times_that_loading_took(start_server):
    models = {**STEPS, "pipe": ensemble("plus", "twice")}
    server = start_explicit(start_server, models, "pipe")
    server.infer("pipe", 1.0)

    def metric(name: str, model_name: str) -> str:
        page = call(server.metrics_port, "/metrics").body.decode()
        found = re.search(rf'^{name}{{model="{model_name}",version="1"}} (.*)', page, re.MULTILINE)
        return found[1] if found else ""

    for name in ("plus", "twice", "pipe"):
        assert metric("nv_inference_request_success", name) == "1"
        assert float(metric("nv_model_load_duration_secs", name)) > 0

    assert server.unload("pipe").status == 200
    assert eventually(lambda: metric("nv_inference_count", "pipe") == "")
    assert metric("nv_inference_count", "plus") == "1"


def test_broken_ensemble_ends_the_start_unless_told_otherwise(start_server):
    models = {
        **STEPS,
        "bad": model("raise RuntimeError('boom')"),
        "broken": ensemble("plus", "bad"),
        "pipe": ensemble("plus", "twice"),
    }
    assert start_server(models).exit_code() == 1

    server = start_server(models, flags=["--exit-on-error=false"]).await_ports()
    assert server.infer("pipe", 1.0) == [4.0]
    current, reason = state(server, "broken")
    assert current == "UNAVAILABLE"
    assert reason.startswith(
        "Invalid argument: ensemble 'broken' depends on 'bad' which has no loaded version. "
        "Model 'bad' loading failed with error: version 1 is at UNAVAILABLE state: Internal: "
        "RuntimeError: boom"
    )
    assert server.get("/v2/health/ready").status == 400
    assert not server.serves("broken")


def test_clients_load_ensembles_with_their_steps_and_unload_them(start_server):
    models = {**STEPS, "pipe": ensemble("plus", "twice"), "nested": ensemble("pipe", "plus")}
    server = start_explicit(start_server, models)

    assert server.load("nested").status == 200
    assert server.infer("nested", 1.0) == [5.0]
    assert server.unload("plus").status == 200
    assert eventually(lambda: state(server, "plus") == ("UNAVAILABLE", "unloaded"))
    assert state(server, "pipe") == state(server, "nested") == ("UNAVAILABLE", "unloaded")
    assert server.get("/v2/health/ready").status == 200
    with pytest.raises(InferFailedError, match=r"nested.* has no available versions"):
        server.infer("nested")

    assert server.load("plus").status == 200
    assert server.infer("nested", 1.0) == [5.0]

    assert server.unload("nested", unload_dependents=True).status == 200
    assert server.serves("plus")  # a client has loaded it
    assert not any(server.serves(name) for name in ("nested", "pipe", "twice"))
    assert eventually(lambda: len(server.workers()) == 1)


def test_replaced_step_is_used_and_one_that_does_not_fit_stops_the_ensemble(start_server):
    server = start_explicit(start_server, {**STEPS, "pipe": ensemble("plus", "twice")}, "pipe")

    server.write("twice", model(code("y = x * 3")))
    assert server.load("twice").status == 200
    assert server.infer("pipe", 1.0) == [6.0]
    (account,) = server.get("/v2/models/pipe/stats").json["model_stats"]
    assert account["inference_count"] == 1

    server.write("twice", model(settings=config().replace("FP32", "INT32")))
    assert server.load("twice").status == 200
    message = (
        "in ensemble pipe, ensemble tensor t1: inconsistent data type: TYPE_FP32 is inferred from "
        "model plus while TYPE_INT32 is inferred from model twice"
    )
    assert state(server, "pipe") == ("UNAVAILABLE", message)
    assert server.get("/v2/health/ready").status == 400
    refused = server.load("pipe")
    assert (refused.status, refused.error) == (400, f"load failed for model 'pipe': {message}\n")

    server.write("twice", TWICE)
    assert server.load("twice").status == 200
    assert server.infer("pipe", 1.0) == [4.0]


def test_running_request_of_an_ensemble_ends_well_though_a_later_step_is_unloaded(start_server):
    models = {
        "held": model(code(f"print('busy')\n{HOLD}\ny = x"), **HELD),
        "twice": TWICE,
        "pipe": ensemble("held", "twice"),
    }
    server = start_explicit(start_server, models, "pipe")

    with server.grpc_client() as client:
        x = grpc_input([[1.0]])
        answers: list = []
        client.async_infer("pipe", [x], lambda result, error: answers.append((result, error)))
        assert eventually(lambda: "busy" in server.output)
        assert server.unload("twice").status == 200
        server.let_go("held")
        assert eventually(lambda: bool(answers))

    ((result, error),) = answers
    assert error is None
    assert result.as_numpy("Y").tolist() == [[2.0]]
    assert eventually(lambda: len(server.workers()) == 1)


def test_running_request_of_nested_ensembles_ends_well_though_the_server_ends(start_server):
    models = {
        "held": model(code(f"print('busy')\n{HOLD}\ny = x"), **HELD),
        "twice": TWICE,
        "inner": ensemble("held", "twice"),
        "outer": ensemble("inner", "twice"),
    }
    server = start_server(models).await_ready()

    with ThreadPoolExecutor() as threads:
        answer = threads.submit(server.infer, "outer", 1.0)
        assert eventually(lambda: "busy" in server.output)
        server.signal()
        assert eventually(lambda: "Waiting for in-flight requests" in server.stdout)
        server.let_go("held")

        assert answer.result() == [4.0]
    assert server.exit_code() == 0
    assert eventually(lambda: not server.descendants())


def grpc_input(rows) -> triton_grpc.InferInput:
    data = np.array(rows, np.float32)
    tensor = triton_grpc.InferInput("X", list(data.shape), "FP32")
    tensor.set_data_from_numpy(data)
    return tensor


def test_ensemble_is_ready_only_with_its_steps(start_server):
    crash = code("os.kill(os.getpid(), 9) if x[0, 0] < 0 else None\ny = x", initialize=HOLD)
    models = {"fragile": model(crash), "pipe": ensemble("fragile")}
    server = start_server(models).await_ready()

    server.hold("fragile")
    with pytest.raises(InferFailedError, match=r"in ensemble .*pipe.*, Stub process"):
        server.infer("pipe", -1.0)
    assert not server.serves("pipe")
    assert server.get("/v2/health/ready").status == 400

    server.let_go("fragile")
    assert eventually(lambda: server.serves("pipe"))
    assert server.infer("pipe", 1.0) == [1.0]


def test_models_control_ensembles(start_server):
    models = {**STEPS, "pipe": ensemble("plus", "twice"), "boss": model(code(LOADS))}
    server = start_explicit(start_server, models, "boss")

    for _ in range(2):
        assert server.infer("boss", 1.0) == [4.0]
        assert not server.serves("pipe")
        assert not server.serves("plus")


def test_poll_follows_ensembles_and_their_steps(start_server):
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false"]
    models = {"plus": PLUS, "pipe": ensemble("plus", "twice")}
    server = start_server(models, flags=flags).await_ports()
    assert not server.serves("pipe")

    server.write("twice", TWICE)
    assert eventually(lambda: server.serves("pipe"))
    assert server.infer("pipe", 1.0) == [4.0]

    shutil.rmtree(server.repository / "twice")
    assert eventually(lambda: state(server, "pipe") == ("UNAVAILABLE", "unloaded"))
    assert server.get("/v2/health/ready").status == 200

    server.write("pipe", ensemble("plus", "plus"))
    assert eventually(lambda: server.serves("pipe"))
    assert server.infer("pipe", 1.0) == [3.0]


def test_ensemble_of_a_configuration_that_a_client_sends(start_server):
    server = start_explicit(start_server, STEPS)
    sent = {
        "platform": "ensemble",
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
        "max_batch_size": 4,
        "ensemble_scheduling": {
            "step": [
                {
                    "model_name": "twice",
                    "model_version": -1,
                    "input_map": {"X": "X"},
                    "output_map": {"Y": "Y"},
                }
            ]
        },
    }

    answer = server.load("sent", config=json.dumps(sent), **{"file:1/x": "eA=="})

    assert answer.status == 200
    assert server.infer("sent", 4.0) == [8.0]


# Bound models


@batch
def negate(X):  # noqa: N803  the input's name
    return {"Y": -X}


def test_remote_processes_bind_steps_of_a_servers_ensemble(start_server):
    models = {"plus": PLUS, "pipe": ensemble("plus", "bound")}
    server = start_server(models, flags=["--exit-on-error=false"]).await_ports()
    assert state(server, "pipe") == ("UNAVAILABLE", f"Invalid argument: {MISSING}")

    with RemoteTriton(f"127.0.0.1:{server.http_port}") as remote:
        remote.bind("bound", negate, [X], [Y], config=ModelConfig(max_batch_size=8))
        assert server.infer("pipe", 1.0) == [-2.0]
        assert server.get("/v2/health/ready").status == 200

    assert eventually(lambda: state(server, "pipe") == ("UNAVAILABLE", MISSING))
