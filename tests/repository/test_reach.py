# SPDX-License-Identifier: Apache-2.0
"""Loads by senders with rights to some models: what they may make reachable."""

from __future__ import annotations

import json

import pytest

from pytriton.base.errors import PermissionDeniedError
from pytriton.serving.repository.reading.reach import Reach
from tests.repository.ensemble_files import write_ensemble, write_step
from tests.repository.scene import CODE, CONFIG, write_model

OWN = {"backend": "python"}
STEP = {
    "model_name": "secret",
    "model_version": -1,
    "input_map": {"X": "X"},
    "output_map": {"Y": "Y"},
}
TENSOR = {"data_type": "TYPE_FP32", "dims": [-1]}
ENSEMBLE = {
    "platform": "ensemble",
    "input": [{"name": "X", **TENSOR}],
    "output": [{"name": "Y", **TENSOR}],
    "ensemble_scheduling": {"step": [STEP]},
}


def load(it, name, config=None, files=(), patterns=("echo*",)):
    text = None if config is None else json.dumps(config)
    it.run(it.models.load(name, text, dict(files), patterns))


def ready(it):
    return sorted(model.spec.name for model in it.engine.models() if model.is_ready)


def test_model_is_loaded_as_it_is(scene, repository):
    write_model(repository, "echo")
    it = scene()

    load(it, "echo")

    assert ready(it) == ["echo"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"instance_group": [{"count": 2}]},
        {"max_batch_size": 8, "dynamic_batching": {"max_queue_delay_microseconds": 100}},
        {"version_policy": {"all": {}}, "response_cache": {"enable": True}},
    ],
)
def test_how_a_model_runs_may_be_changed(scene, repository, changes):
    write_model(repository, "echo", CONFIG)
    it = scene()

    load(it, "echo", {**OWN, **changes})

    assert ready(it) == ["echo"]


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": {"EXECUTION_ENV_PATH": {"string_value": "/else/env.tar.gz"}}},
        {"default_model_filename": "other.py"},
        {"backend": "onnxruntime"},
        {"input": [{"name": "X", **TENSOR}]},
        {"output": [{"name": "Y", **TENSOR, "label_filename": "../secret/labels.txt"}]},
        {"model_operations": {"op_library_filename": ["/else/lib.so"]}},
        {"model_repository_agents": {"agents": [{"name": "checksum"}]}},
        ENSEMBLE,
    ],
)
def test_what_runs_may_not_be_changed(scene, repository, changes):
    write_model(repository, "echo", CONFIG)
    it = scene()

    with pytest.raises(PermissionDeniedError):
        load(it, "echo", {**OWN, **changes})

    assert ready(it) == []


@pytest.mark.parametrize("name", ["echo", "echo_new"])
def test_files_may_not_be_sent(scene, repository, name):
    write_model(repository, "echo", CONFIG)
    it = scene()

    with pytest.raises(PermissionDeniedError, match="code in them can call every model"):
        load(it, name, OWN, {"1/model.py": CODE.encode()})

    assert ready(it) == []


@pytest.mark.parametrize("files", [{}, {"1/x": b"x"}])
def test_ensemble_that_is_sent_may_not_name_other_models(scene, repository, files):
    write_step(repository, "secret")
    it = scene()

    with pytest.raises(PermissionDeniedError):
        load(it, "echoE", ENSEMBLE, files)

    assert ready(it) == []


@pytest.mark.parametrize("patterns,is_loaded", [(("echo*",), False), (("echo*", "sec*"), True)])
@pytest.mark.parametrize("name", ["echoE", "echoN"])
def test_load_of_an_ensemble_needs_the_right_to_its_steps(
    scene, repository, name, patterns, is_loaded
):
    write_step(repository, "secret")
    write_step(repository, "echo")
    write_ensemble(repository, "echoE", "echo", "secret")
    write_ensemble(repository, "echoN", "echoE")
    it = scene()

    if is_loaded:
        load(it, name, patterns=patterns)
    else:
        with pytest.raises(PermissionDeniedError, match="a step of the model 'secret'"):
            load(it, name, patterns=patterns)

    assert (name in ready(it)) is is_loaded
    assert ("secret" in ready(it)) is is_loaded


def test_who_has_a_right_to_all_models_may_send_all(scene, repository):
    write_step(repository, "secret")
    it = scene()

    load(it, "secret", patterns=None)
    load(it, "echo", OWN, {"1/model.py": CODE.encode()}, patterns=None)

    assert ready(it) == ["echo", "secret"]


def test_no_pattern_reaches_nothing():
    with pytest.raises(PermissionDeniedError):
        Reach(()).check_steps("e", [""])
