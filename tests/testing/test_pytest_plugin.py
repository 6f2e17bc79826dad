# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin in runs of pytest of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TESTS = """
import urllib.request

import numpy as np
import pytest

from pytriton.model_config import ModelConfig, Tensor

ONE = np.ones((1, 1), np.float32)
TENSORS = [Tensor(name="a", dtype=np.float32, shape=(1,))]


def twice(x: float) -> float:
    return 2 * x


@pytest.fixture(scope="module")
def server(pytriton_module_server):
    return pytriton_module_server(twice)


def test_function_is_served(server):
    answer = server.client("twice").infer_sample(np.array([3.0]))
    assert answer["output"].item() == 6


def test_server_is_shared(server):
    server.bind("Same", lambda each: each, TENSORS, TENSORS)
    assert server.client("Same", grpc=True).infer_batch(ONE)["a"].item() == 1


def test_stream_and_metrics(server):
    def three(requests):
        for _ in range(3):
            yield requests

    server.bind("Three", three, TENSORS, TENSORS, config=ModelConfig(decoupled=True))
    assert len(list(server.stream_client("Three").infer_batch(ONE))) == 3
    with urllib.request.urlopen(f"{server.metrics_url}/metrics") as page:
        assert b"nv_inference" in page.read()


def test_that_fails(pytriton_server):
    server = pytriton_server(log_verbose=1)
    assert server.http_url == "nothing"
"""


def run(folder, *options):
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    environment.pop("PYTEST_XDIST_WORKER", None)
    return subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "pytest", "-p", "pytriton.pytest_plugin"),
            *("-p", "no:cacheprovider", f"--rootdir={folder}", *options, folder),
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.e2e
def test_servers_are_started_shared_shown_and_ended(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    result = run(tmp_path, "-p", "xdist", "-n1", "-W", "error")
    output = result.stdout + result.stderr

    assert "1 failed, 3 passed" in output, output
    assert "Log of the server at http://127.0.0.1:" in output
    assert "Started HTTPService at 127.0.0.1:" in output


def test_runs_without_servers_import_nothing_of_the_package(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\n\n\ndef test_it():\n"
        "    mine = {name for name in sys.modules if name.startswith('pytriton.')}\n"
        "    mine -= {'pytriton.base'}  # the package around the next, with nothing in it\n"
        "    assert mine == {'pytriton.base.lazy_module', 'pytriton.pytest_plugin'}\n"
        "    assert 'numpy' not in sys.modules\n"
    )
    result = run(tmp_path)

    assert result.returncode == 0, result.stdout


def test_plugin_is_found_by_pytest():
    project = (ROOT / "pyproject.toml").read_text()

    assert '[project.entry-points.pytest11]\npytriton = "pytriton.pytest_plugin"' in project
