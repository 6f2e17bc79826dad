# SPDX-License-Identifier: Apache-2.0
"""Recordings of a repository's models, in both places of front ends, and a shadow that is sick."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import threading

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from pytriton.__main__ import main
from pytriton.tools.perf.data.recorded import read_recording
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import code

TOKEN = "token-of-the-tests"
FLAG = f"--page-token={TOKEN}"
SMALL = """
max_batch_size: 64
backend: "python"
dynamic_batching {}
input [{name: "X" data_type: TYPE_FP32 dims: [2]}]
output [{name: "Y" data_type: TYPE_FP32 dims: [2]}]
"""
LARGE = """
max_batch_size: 0
backend: "python"
input [{name: "X" data_type: TYPE_FP32 dims: [-1]}]
output [{name: "Y" data_type: TYPE_FP32 dims: [-1]}]
"""
# One element is another as long as a file lies beside the code.
CHANGING = """
y = 2 * x
if os.path.exists(os.path.join(os.path.dirname(__file__), "changed")):
    y[617023] += 0.5
"""
MODELS = {
    "double": {"config.pbtxt": SMALL, "1/model.py": code("y = 2 * x")},
    "large": {"config.pbtxt": LARGE, "1/model.py": code(CHANGING)},
}
WRONG = {"double": {"config.pbtxt": SMALL, "1/model.py": code("y = 3 * x")}}


def metric(server, name, **labels):
    text = server.get("/metrics", port=server.metrics_port)
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    found = re.search(rf"^{name}{re.escape('{' + inside + '}') if inside else ''} (\\S+)$", text, re.M)
    return float(found[1]) if found else None


def ask(server, model, array):
    with triton_http.InferenceServerClient(f"localhost:{server.http_port}") as client:
        given = triton_http.InferInput("X", array.shape, "FP32")
        given.set_data_from_numpy(array)
        return client.infer(model, [given]).as_numpy("Y")


def ask_grpc(server, model, array):
    with triton_grpc.InferenceServerClient(f"localhost:{server.grpc_port}") as client:
        given = triton_grpc.InferInput("X", array.shape, "FP32")
        given.set_data_from_numpy(array)
        return client.infer(model, [given]).as_numpy("Y")
