# SPDX-License-Identifier: Apache-2.0
"""Loading, listing and unloading of models in this process, and the metrics of a program."""

from __future__ import annotations

import gc
import json
import shutil
import threading

import numpy as np
import pytest

import tritonserver
from pytriton.inprocess.metrics import shared_families
from tests.e2e.waiting import DEADLINE_S
from tests.inprocess import models
from tests.repository_e2e.model_files import write_model
from tritonserver import Metric, MetricFamily, MetricKind, ModelControlMode, Options, Server


@pytest.fixture(scope="module")
def explicit(tmp_path_factory, repository):
    """A server in which the program loads models."""
    options = Options(
        [str(repository)],
        model_control_mode=ModelControlMode.EXPLICIT,
        startup_models=["identity"],
        server_id="mine",
    )
    server = Server(options).start()
    yield server
    server.stop()


def answer(model: tritonserver.Model) -> list[float]:
    (response,) = model.infer(inputs={"INPUT0": np.array([2], np.float32)})
    return np.from_dlpack(response.outputs["OUTPUT0"]).tolist()


def test_server_describes_itself(explicit):
    metadata = explicit.metadata()

    assert metadata["name"] == "mine"
    assert "model_repository" in metadata["extensions"]
    assert explicit.live()
    assert explicit.ready()


def test_models_are_listed_by_name_and_version(explicit):
    models = explicit.models()

    assert models["identity", 1].state == "READY"
    assert models["identity"].version == -1
    assert models["strings", -1].state is None
    assert "strings" in models
    assert set(explicit.models(exclude_not_ready=True)) == {("identity", 1)}
    with pytest.raises(KeyError, match="Unknown Model: nothing"):
        _ = models["nothing"]


def test_model_is_loaded_and_unloaded(explicit):
    model = explicit.load("cached")
    answered = answer(model)
    explicit.unload(model, wait_until_unloaded=True)

    assert answered == [2]
    assert not model.ready()
    assert explicit.models()["cached", 1].state == "UNAVAILABLE"
    with pytest.raises(tritonserver.NotFoundError, match="cached"):
        answer(model)


def test_model_is_loaded_from_parameters(explicit):
    config = {
        "backend": "python",
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        "parameters": {"own": {"string_value": "yes"}},
    }
    code = models.identity()["1/model.py"]
    model = explicit.load("sent", {"config": json.dumps(config), "file:1/model.py": code.encode()})

    assert answer(model) == [2]
    assert model.config()["parameters"]["own"]["string_value"] == "yes"
    explicit.unload("sent")


def test_model_that_cannot_be_loaded_says_why(explicit):
    with pytest.raises(tritonserver.TritonError, match="nothing"):
        explicit.load("nothing")
    with pytest.raises(tritonserver.InvalidArgumentError, match="unrecognized load parameter 'x'"):
        explicit.load("identity", {"x": 1})
    with pytest.raises(tritonserver.InvalidArgumentError, match="must be bytes, got <class 'str'>"):
        explicit.load("identity", {"file:1/model.py": "text"})
    assert answer(explicit.model("identity")) == [2]


def test_repository_is_added_and_its_models_renamed(explicit, tmp_path):
    write_model(tmp_path / "folder", models.identity())
    write_model(tmp_path / "plain", models.identity())
    explicit.register_model_repository(str(tmp_path), {"folder": "renamed"})

    assert {"renamed", "plain"} <= {name for name, _ in explicit.models()}
    assert answer(explicit.load("renamed")) == [2]
    assert answer(explicit.load("plain")) == [2]
    with pytest.raises(tritonserver.AlreadyExistsError, match="already been registered"):
        explicit.register_model_repository(str(tmp_path))
    explicit.unload("renamed", wait_until_unloaded=True)
    explicit.unload("plain", wait_until_unloaded=True)
    explicit.unregister_model_repository(str(tmp_path))
    with pytest.raises(tritonserver.TritonError, match="plain"):
        explicit.load("plain")
    with pytest.raises(tritonserver.InvalidArgumentError, match="repository not found"):
        explicit.unregister_model_repository(str(tmp_path))
    with pytest.raises(tritonserver.InvalidArgumentError, match="repository not found"):
        explicit.register_model_repository(str(tmp_path / "none"))


def test_repository_of_the_start_is_removed_and_added_again(explicit, repository):
    """The answers are those of the real library."""
    with pytest.raises(tritonserver.AlreadyExistsError, match="already been registered"):
        explicit.register_model_repository(str(repository))
    explicit.unregister_model_repository(str(repository))
    assert "counting" not in {name for name, _ in explicit.models()}
    with pytest.raises(tritonserver.TritonError, match="failed to load 'counting'"):
        explicit.load("counting")
    assert answer(explicit.model("identity")) == [2]
    explicit.register_model_repository(str(repository))
    assert "counting" in {name for name, _ in explicit.models()}


def test_models_are_polled_when_the_program_says_so(tmp_path):
    write_model(tmp_path / "first", models.identity())
    server = Server(model_repository=str(tmp_path), model_control_mode=ModelControlMode.POLL).start(
        wait_until_ready=True
    )
    write_model(tmp_path / "second", models.identity())
    shutil.rmtree(tmp_path / "first")
    server.poll_model_repository()

    assert answer(server.model("second")) == [2]
    assert not server.model("first").ready()
    with pytest.raises(tritonserver.UnavailableError, match="explicit model load"):
        server.load("second")
    with pytest.raises(tritonserver.UnsupportedError, match="not EXPLICIT"):
        server.register_model_repository("x")
    server.stop()


def test_server_that_does_not_poll_says_so(explicit):
    with pytest.raises(tritonserver.UnavailableError, match="polling is disabled"):
        explicit.poll_model_repository()


def test_metrics_of_the_program_are_shown(explicit):
    family = MetricFamily(MetricKind.COUNTER, "tests_total", "What the tests count.")
    metric = Metric(family, {"kind": "a"})
    metric.increment(2)
    same = Metric(family, {"kind": "a"})
    same.increment(0.5)
    gauge = Metric(MetricFamily(MetricKind.GAUGE, "tests_level", "A level."))
    gauge.set_value(4)

    page = explicit.metrics()
    assert "# HELP tests_total What the tests count.\n# TYPE tests_total counter\n" in page
    assert 'tests_total{kind="a"} 2.5\n' in page
    assert "tests_level 4\n" in page
    assert "nv_inference_request_success" in page
    assert (metric.value, metric.kind, gauge.kind) == (2.5, MetricKind.COUNTER, MetricKind.GAUGE)
    del metric, same, family
    gc.collect()
    assert "tests_total" not in explicit.metrics()


def test_metric_may_be_freed_while_metrics_are_read():
    """The garbage collector runs when it wants to."""

    class Holder:
        def __init__(self):
            self.itself = self
            self.metric = Metric(MetricFamily(MetricKind.GAUGE, "freed", ""))

    def read():
        with shared_families() as families:
            gc.collect()
            names.append([family.name for family in families.families()])

    names: list[list[str]] = []
    Holder()
    for _ in range(2):
        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        reading.join(DEADLINE_S)

    assert "freed" in names[0]
    assert "freed" not in names[1]


def test_metrics_are_checked():
    family = MetricFamily(MetricKind.COUNTER, "checked_total", "")

    with pytest.raises(tritonserver.InvalidArgumentError, match="non-negative"):
        Metric(family).increment(-1)
    with pytest.raises(tritonserver.UnsupportedError, match="Set"):
        Metric(family).set_value(1)
    with pytest.raises(tritonserver.InvalidArgumentError, match="Invalid metric name"):
        MetricFamily(MetricKind.GAUGE, "no name", "")
    with pytest.raises(tritonserver.AlreadyExistsError, match="different type"):
        MetricFamily(MetricKind.GAUGE, "checked_total", "")
    with pytest.raises(tritonserver.InvalidArgumentError, match="MetricKind, got 1"):
        MetricFamily(1, "other", "")
