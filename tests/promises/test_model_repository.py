# SPDX-License-Identifier: Apache-2.0
"""A `model_repository` in the settings: its models are served beside those that are bound."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from pytriton.client import ModelClient
from pytriton.exceptions import PyTritonRuntimeError
from pytriton.model_config import Tensor
from tests.e2e.http_client import infer, is_ready
from tests.e2e.scripts import SERVE
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import code, model, write_model

pytestmark = pytest.mark.e2e

X = Tensor(name="X", dtype=np.float32, shape=(-1,))
Y = Tensor(name="Y", dtype=np.float32, shape=(-1,))
ONE = np.ones((1, 1), np.float32)
DOUBLE = model(code("y = x * 2"))
BROKEN = model("raise OSError('no weights here')")


@pytest.fixture
def repository(tmp_path):
    """Makes a repository of models; gives its folder."""

    def make(**models):
        for name, files in models.items():
            write_model(tmp_path / "models" / name, files)
        return tmp_path / "models"

    return make


def test_models_of_both_kinds_are_served_and_bound_ones_hide_others(run_triton, ports, repository):
    triton = run_triton(model_repository=repository(Double=DOUBLE, Both=DOUBLE), **ports)
    for name, factor in (("Bound", 3), ("Both", 5)):
        triton.bind(
            name, lambda requests, by=factor: [{"Y": r["X"] * by} for r in requests], [X], [Y]
        )

    answers = {
        name: infer(ports["http_port"], name, {"X": ONE})["Y"].item()
        for name in ("Double", "Bound", "Both")
    }

    assert answers == {"Double": 2.0, "Bound": 3.0, "Both": 5.0}


def test_repository_comes_from_the_environment_too(run_triton, ports, repository, monkeypatch):
    folder = repository(Double=DOUBLE)
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_MODEL_REPOSITORY", str(folder))
    run_triton(**ports)

    with ModelClient(f"localhost:{ports['http_port']}", "Double") as client:
        assert client.infer_batch(ONE)["Y"].tolist() == [[2.0]]


def test_model_that_cannot_be_loaded_ends_the_start(run_triton, ports, repository, capfd):
    with pytest.raises(PyTritonRuntimeError, match="failed to load all models"):
        run_triton(model_repository=repository(Broken=BROKEN), **ports)

    assert "UNAVAILABLE: Internal: OSError: no weights here" in capfd.readouterr().err


def test_server_goes_on_without_what_cannot_be_loaded_where_told_to(run_triton, ports, repository):
    folder = repository(Broken=BROKEN, Double=DOUBLE)
    triton = run_triton(model_repository=folder, exit_on_error=False, **ports)

    assert triton.is_alive()
    assert is_ready(ports["http_port"], "Double")
    assert not is_ready(ports["http_port"], "Broken")


def test_killed_script_leaves_no_worker_behind(start_script, repository):
    folder = str(repository(Double=DOUBLE))
    environment = {"PYTRITON_TRITON_CONFIG_MODEL_REPOSITORY": folder}
    script = start_script(SERVE, environment=environment, quiet=True)
    script.await_ready("Double")
    script.await_ready("Model")

    os.kill(script.process.pid, signal.SIGKILL)

    assert script.await_gone() == {}


def test_script_killed_while_models_are_loaded_leaves_nothing_behind(
    start_script, repository, tmp_path
):
    begun = tmp_path / "begun"
    hang = f"open({str(begun)!r}, 'w').close(); signal.pause()"
    folder = str(repository(Slow=model(code(initialize=hang))))
    environment = {"PYTRITON_TRITON_CONFIG_MODEL_REPOSITORY": folder}
    script = start_script(SERVE, environment=environment, quiet=True)
    assert eventually(begun.exists)

    os.kill(script.process.pid, signal.SIGKILL)

    assert script.await_gone() == {}
