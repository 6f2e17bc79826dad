# SPDX-License-Identifier: Apache-2.0
"""The notebook, and all clients, in a real Jupyter kernel: a loop runs in its main thread."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.examples.readme_commands import with_ports
from tests.free_ports import free_ports
from tests.guides import http_calls

EXECUTE = pathlib.Path(__file__).with_name("execute_notebook.py")
NOTEBOOK = pathlib.Path(__file__).parents[2] / "examples" / "notebook" / "add_sub.ipynb"
PORT_NAMES = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT")
TIMEOUT_S = 180

pytestmark = pytest.mark.e2e


@pytest.fixture
def ports():
    return free_ports(3)


@pytest.fixture
def execute(ports, tmp_path):
    """Runs cells against other ports; gives what each shows, without the server's log."""
    pytest.importorskip("ipykernel")
    pytest.importorskip("nbclient")
    settings = {
        f"PYTRITON_TRITON_CONFIG_{name}": str(port)
        for name, port in zip(PORT_NAMES, ports, strict=True)
    }

    def run(document):
        moved = dict(zip(("8000", "8001"), map(str, ports), strict=False))
        (tmp_path / "in.ipynb").write_text(with_ports(json.dumps(document), moved))
        done = subprocess.run(
            [sys.executable, EXECUTE, "in.ipynb", "out.ipynb"],
            cwd=tmp_path,
            env=os.environ | settings,
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return shown_by(json.loads((tmp_path / "out.ipynb").read_text()))

    return run


def shown_by(document):
    return [
        [output for output in cell["outputs"] if output.get("name") != "stderr"]
        for cell in document["cells"]
        if cell["cell_type"] == "code"
    ]


def test_notebook_shows_what_it_was_saved_with(execute, ports):
    saved = json.loads(NOTEBOOK.read_text())

    assert execute(saved) == shown_by(saved)
    assert not http_calls.answers(ports[0])


SETUP = """
import numpy as np
from pytriton.client import *
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

@batch
def double(x):
    print("called")
    return {"y": 2 * x}

def count(requests):
    for number in range(3):
        yield [{"y": np.array([number], np.float32)}]

x, y = (Tensor(name=name, dtype=np.float32, shape=(1,)) for name in ("x", "y"))
HTTP, GRPC, one = "http://127.0.0.1:8000", "grpc://127.0.0.1:8001", np.ones(1, np.float32)
triton = Triton()
triton.bind("Double", double, [x], [y], config=ModelConfig(max_batch_size=8))
triton.bind("Count", count, [x], [y], config=ModelConfig(batching=False, decoupled=True))
triton.run()
"""
SYNC = """
for url in (HTTP, GRPC):
    with ModelClient(url, "Double") as client:
        print(client.infer_sample(one)["y"])
    with FuturesModelClient(url, "Double") as client:
        print(client.infer_sample(one).result()["y"])
with DecoupledModelClient(GRPC, "Count") as client:
    print([answer["y"].item() for answer in client.infer_sample(one)])
"""
ASYNC = """
for url in (HTTP, GRPC):
    async with AsyncioModelClient(url, "Double") as client:
        print((await client.infer_sample(one))["y"])
async with AsyncioDecoupledModelClient(GRPC, "Count") as client:
    print([answer["y"].item() async for answer in client.infer_sample(one)])
"""


def test_every_client_works_in_a_kernel_and_after_a_second_start(execute):
    sources = [SETUP, SYNC, ASYNC, "triton.stop(); triton.run();", SYNC, ASYNC, "triton.stop();"]
    cells = [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "metadata": {},
            "source": source,
            "outputs": [],
            "execution_count": None,
        }
        for number, source in enumerate(sources)
    ]
    document = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}

    shown = [
        "".join(line for output in outputs for line in output["text"])
        for outputs in execute(document)
    ]

    # Under which cell a kernel shows what another thread prints is for the kernel to decide.
    assert "".join(shown).count("called\n") == 12
    answers = [text.replace("called\n", "") for text in shown]
    sync, asynchronous = "[2.]\n" * 4 + "[0.0, 1.0, 2.0]\n", "[2.]\n" * 2 + "[0.0, 1.0, 2.0]\n"
    assert answers == ["", sync, asynchronous, "", sync, asynchronous, ""]
