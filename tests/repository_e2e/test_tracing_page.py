# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/tracing.md do what the page says."""

from __future__ import annotations

import json
import pathlib
import shlex
import subprocess
import sys

import numpy as np
import tritonclient.http as triton_http

from tests.repository_e2e.model_files import code, model
from tests.snippets import snippets

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "tracing.md"


def commands(program):
    """The page's commands of a program, without its name."""
    lines = [line for block in snippets(PAGE, "shell") for line in block.text.splitlines()]
    found = [shlex.split(line)[1:] for line in lines if line.split()[0] == program]
    assert found
    return found


def run_trace(arguments, folder):
    command = [sys.executable, "-m", "pytriton", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_server_of_the_page_writes_what_the_command_reads(start_server, tmp_path):
    (server_flags,) = commands("tritonserver")
    file = "triton,file=trace.json"
    flags = [flag.replace(file, f"triton,file={tmp_path}/trace.json") for flag in server_flags]
    assert flags != server_flags
    flags = [flag for flag in flags if not flag.startswith("--model-repository")]
    server = start_server({"simple": model(code())}, flags=flags).await_ready()
    x = triton_http.InferInput("X", [1, 1], "FP32")
    x.set_data_from_numpy(np.ones((1, 1), np.float32))
    # One connection: a front end in a process of its own counts the requests of its clients.
    with server.http_client(concurrency=1) as client:
        for _ in range(200):
            client.infer("simple", [x])
    assert server.end() == 0

    summary, timelines, as_json = (run_trace(each, tmp_path) for each in commands("pytriton"))
    assert summary.startswith("simple (version 1): trace count = 2\n")
    assert [line.split()[0] for line in summary.splitlines()[2:]] == [
        "HTTP",
        "receive",
        "send",
        "overhead",
        "handler",
        "overhead",
        "queue",
        "compute",
        "input",
        "infer",
        "output",
    ]
    assert "\ntrace 2: simple (version 1)\n           0.0  HTTP_RECV_START\n" in timelines
    assert json.loads(as_json)["models"][0]["count"] == 2
