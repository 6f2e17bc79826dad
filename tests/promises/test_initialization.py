# SPDX-License-Identifier: Apache-2.0
"""Initialization: when the server starts, what the model store holds and what is logged."""

from __future__ import annotations

import gc
import logging
import os
import weakref

import numpy as np
import pytest

from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.model_config import Tensor
from pytriton.model_config.parser import ModelConfigParser
from pytriton.tools.check.utils import search_warning_on_too_verbose_log_level
from pytriton.triton import (
    DefaultTritonLifecyclePolicy,
    Triton,
    TritonConfig,
    TritonLifecyclePolicy,
    VertextAILifecyclePolicy,
)
from tests.e2e.http_client import is_port_free, is_ready
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.e2e

X = Tensor(name="x", dtype=np.float32, shape=(-1,))


def identity(requests):
    return requests


@pytest.mark.parametrize(
    "settings, expected",
    [({}, DefaultTritonLifecyclePolicy), ({"allow_vertex_ai": True}, VertextAILifecyclePolicy)],
    ids=["default", "vertex-ai"],
)
def test_policy_follows_the_config(settings, expected):
    assert Triton(config=TritonConfig(**settings))._policy == expected


def test_policy_given_wins_over_the_config():
    policy = TritonLifecyclePolicy()
    config = TritonConfig(allow_vertex_ai=True)

    assert Triton(config=config, triton_lifecycle_policy=policy)._policy is policy


def test_server_that_starts_later_starts_in_run(ports):
    policy = TritonLifecyclePolicy(launch_triton_on_startup=False)
    with Triton(config=TritonConfig(**ports), triton_lifecycle_policy=policy) as triton:
        triton.bind("Model", identity, [X], [X])
        assert not triton.is_alive()
        assert is_port_free(ports["http_port"])
        with pytest.raises(PyTritonInvalidOperationError, match="call run"):
            triton.connect()

        triton.run()

        assert triton.is_connected()
        assert is_ready(ports["http_port"], "Model")


def test_local_model_store_holds_the_configuration(ports, tmp_path, caplog):
    policy = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=True)
    workspace = tmp_path / "workspace"
    with Triton(
        config=TritonConfig(**ports), triton_lifecycle_policy=policy, workspace=workspace
    ) as triton:
        triton.bind("Model", identity, [X], [X], model_version=3)
        store = workspace / "model-store" / "Model"
        stored = ModelConfigParser.from_file(config_path=store / "config.pbtxt")
        triton.run()

        assert (store / "3").is_dir()
        assert stored.model_name == "Model"
        assert [spec.name for spec in stored.inputs] == ["x"]
        assert is_ready(ports["http_port"], "Model")
        assert "already exists" not in caplog.text
    assert not workspace.exists()


def test_where_a_model_is_reached_is_logged(ports, caplog):
    caplog.set_level(logging.INFO, "pytriton")
    triton = Triton(config=TritonConfig(**ports))
    triton.bind("Model", identity, [X], [X])
    triton.run()
    triton.stop()

    address = f"http://127.0.0.1:{ports['http_port']}/v2/models/Model"
    assert f"`{address}`" in caplog.text
    assert f"POST {address}/infer" in caplog.text
    assert f"kill {os.getpid()}" in caplog.text


@pytest.mark.parametrize("level, warnings", [(0, 0), (1, 2)], ids=["quiet", "verbose"])
def test_verbose_server_is_warned_of_after_its_start_and_again_at_its_end(
    ports, tmp_path, caplog, level, warnings
):
    config = TritonConfig(log_verbose=level, log_file=tmp_path / "log", **ports)
    with Triton(config=config):
        assert bool(search_warning_on_too_verbose_log_level(caplog.text)) is bool(warnings)

    assert caplog.text.count("enabled verbose logs") == warnings


@pytest.mark.parametrize(
    "first, second",
    [({"allow_grpc": False}, {"allow_http": False}), ({}, {"allow_metrics": False})],
    ids=["one protocol each", "metrics of one"],
)
def test_servers_of_one_process_live_side_by_side(run_triton, first, second):
    servers = [run_triton(**first), run_triton(**second)]
    for server in servers:
        server.bind("Model", identity, [X], [X])

    assert [server.is_alive() for server in servers] == [True, True]
    servers[0].stop()
    assert [server.is_alive() for server in servers] == [False, True]


def test_stopped_object_and_its_models_are_forgotten(ports):
    class Model:
        def __call__(self, requests):
            return requests

    triton, model = Triton(config=TritonConfig(**ports)), Model()
    triton.bind("Model", model, [X], [X])
    triton.run()
    triton.stop()
    references = [weakref.ref(triton), weakref.ref(model)]
    del triton, model

    def are_gone():
        gc.collect()
        return all(reference() is None for reference in references)

    assert eventually(are_gone)
