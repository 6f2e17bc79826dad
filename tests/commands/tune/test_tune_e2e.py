# SPDX-License-Identifier: Apache-2.0
"""`pytriton tune` with real servers: one that runs, and one that it starts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from pytriton.tools.commands.tune.command import run
from tests.commands.perf.test_perf_e2e import ADD
from tests.e2e.waiting import eventually
from tests.pictures import keep
from tests.repository_e2e.model_files import write_model
from tests.repository_e2e.server_process import ServerProcess

pytestmark = pytest.mark.e2e

SMALL = ["--shape", "a:1", "--window", "60", "--concurrency", "8", "--max-instances", "1"]
# The picture of the docs takes its time, so that it shows something.
IN_FULL = ["--window", "500", "--budget", "100", "--max-instances", "2", "--concurrency", "16"]
QUICK = ["--budget", "12", "--max-batch-size", "8"]


@pytest.fixture(autouse=True)
def _token_like_an_option(monkeypatch):
    """The token of own servers begins with a dash, as one in 64 does."""
    monkeypatch.setattr("pytriton.tools.commands.tune.command.secrets.token_urlsafe", "-{}".format)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    write_model(folder / "models" / "add", ADD)
    flags = ["--model-control-mode=explicit", "--load-model=add"]
    with ServerProcess(folder, [folder / "models"], flags) as running:
        yield running.await_ready()


def config_of(server: ServerProcess) -> dict:
    url = f"http://127.0.0.1:{server.http_port}/v2/models/add/config"
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


# The last one where there was no time for a second configuration.
VERDICTS = ("Recommended: ", "Keep the present ", "No recommendation: ")


@pytest.mark.part("docs")  # matplotlib
def test_running_server_is_tuned_and_left_as_it_was(server, tmp_path):
    before = config_of(server)
    settings = IN_FULL if os.environ.get("PYTRITON_PICTURES") == "1" else QUICK
    out: list[str] = []
    errors: list[str] = []

    code = run(
        ["add", "-u", f"127.0.0.1:{server.http_port}", *SMALL, *settings,
         "--plot", str(tmp_path / "tune.png")],
        out.append, errors.append,
    )  # fmt: skip

    assert (code, errors) == (0, [])
    rows = [line for text in out for line in text.splitlines() if line.split()[-1:] == ["now"]]
    assert rows[0].split()[:3] == ["8", "0", "1"]
    assert any(text.startswith(VERDICTS) for text in out)
    assert config_of(server) == before
    keep("tune.png", tmp_path / "tune.png")


def test_ctrl_c_restores_the_configuration(server):
    before = config_of(server)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytriton", "tune", "add", "-u", f"127.0.0.1:{server.http_port}",
         *SMALL, "--budget", "600"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    changed = eventually(lambda: config_of(server)["max_batch_size"] != before["max_batch_size"]
                         or "dynamic_batching" not in config_of(server))  # fmt: skip
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate()

    assert changed
    assert process.returncode == 130, errors.decode()
    assert b"max batch" in out
    assert config_of(server) == before


def test_own_server_is_started_on_a_repository(tmp_path):
    write_model(tmp_path / "models" / "add", ADD)
    out: list[str] = []
    errors: list[str] = []

    code = run(
        ["add", "--model-repository", str(tmp_path / "models"), *SMALL, "--budget", "1",
         "-i", "grpc"],
        out.append, errors.append,
    )  # fmt: skip

    assert (code, errors) == (0, [])
    assert any(text.startswith(VERDICTS) for text in out)


def test_own_server_that_does_not_start_says_why(tmp_path):
    (tmp_path / "models").mkdir()
    errors: list[str] = []

    code = run(["none", "--model-repository", str(tmp_path / "models")], print, errors.append)

    assert code == 1
    assert "the server did not start" in errors[0]
    assert "failed to poll model 'none': model not found in any model repository" in errors[0]
    assert "+---" not in errors[0]  # the tables of the log


def test_function_of_a_file_is_served_and_measured(tmp_path):
    path = tmp_path / "functions.py"
    path.write_text(
        "import numpy as np\n"
        "from pytriton.decorators import model\n"
        "@model(max_batch_size=4)\n"
        "def double(a: float) -> float:\n"
        "    return a * 2\n"
    )
    out: list[str] = []
    errors: list[str] = []

    code = run(
        [f"{path}:double", "--window", "60", "--concurrency", "4", "--max-instances", "1",
         "--budget", "1"],
        out.append, errors.append,
    )  # fmt: skip

    assert (code, errors) == (0, [])
    rows = [text for text in out if text.split() and text.split()[0].isdigit()]
    assert rows[0].split()[:3] == ["4", "0", "1"]
    assert rows[0].endswith("now")
