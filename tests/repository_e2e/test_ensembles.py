# SPDX-License-Identifier: Apache-2.0
"""Ensembles of repositories: loaded with their steps, replaced and unloaded with them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton
from tests.e2e.http_client import InferFailedError, call
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import code, ensemble, model

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


def test_models_control_ensembles(start_server):
    models = {**STEPS, "pipe": ensemble("plus", "twice"), "boss": model(code(LOADS))}
    server = start_explicit(start_server, models, "boss")

    for _ in range(2):
        assert server.infer("boss", 1.0) == [4.0]
        assert not server.serves("pipe")
        assert not server.serves("plus")


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
