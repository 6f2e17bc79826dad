# SPDX-License-Identifier: Apache-2.0
"""A server of a repository with a page; its models answer, stream, fail and have odd names."""

from __future__ import annotations

import pathlib

import pytest

from tests.collected import items_in
from tests.repository_e2e.model_files import DECOUPLED, code, config, decoupled_code, model
from tests.repository_e2e.server_process import starter

TOKEN = "page-secret"
HEADERS = {"triton-access-token": TOKEN}
ODD_NAME = "<img src=x onerror=alert(1)>"  # of a folder, and so of a model

WORDS_CONFIG = f"""backend: "python"
input [{{ name: "prompt" data_type: TYPE_STRING dims: [ 1 ] }}]
output [{{ name: "text" data_type: TYPE_STRING dims: [ 1 ] }}]
instance_group [{{ kind: KIND_CPU }}]
{DECOUPLED}
"""
# Streams words; for the prompt "forever" until it is cancelled.
WORDS = """
import itertools
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            prompt = pb_utils.get_input_tensor_by_name(request, "prompt").as_numpy()[0].decode()
            answer = f"You asked: {prompt} This answer comes word by word.".split()
            for said in itertools.repeat("ever") if prompt == "forever" else answer:
                if request.is_cancelled():
                    pb_utils.Logger.log_warn("the stream was cancelled")
                    break
                word = np.array([f"{said} ".encode()], object)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text", word)]))
                if prompt == "forever":
                    time.sleep(0.02)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Fails for a negative number.
DOUBLE = code("""
if len(x) == 1:
    print("doubling", x[0, 0], flush=True)
if x.min() < 0:
    responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("no negative numbers")))
    continue
y = 2 * x
""")
REPOSITORY = {
    "double": model(DOUBLE, config("dynamic_batching { }")),
    "words": model(WORDS, WORDS_CONFIG),
    "count": model(decoupled_code("for n in range(3): send([[n + x[0, 0]]])"), config(DECOUPLED)),
    "spare": model(),
    "broken": model(code(initialize="raise ValueError('no weights')")),
    ODD_NAME: model(),
}


def pytest_collection_modifyitems(items):
    for item in items_in(pathlib.Path(__file__).parent, items):
        item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="module")
def start_server(tmp_path_factory):
    with starter(tmp_path_factory.mktemp("servers")) as start:
        yield start


@pytest.fixture(scope="module")
def start_page(start_server):
    """Starts servers of the repository above in which three models are loaded."""

    def start(*flags, **settings):
        loaded = [f"--load-model={name}" for name in ("double", "words", "count")]
        environment = {"PYTRITON_PAGE_TOKEN": TOKEN}
        server = start_server(
            REPOSITORY,
            flags=["--model-control-mode=explicit", *loaded, *flags],
            environment=environment,
            **settings,
        )
        return server.await_ready()

    return start
