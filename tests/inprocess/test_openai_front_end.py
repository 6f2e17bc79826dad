# SPDX-License-Identifier: Apache-2.0
"""What the OpenAI front end of Triton's own repository uses of `tritonserver`."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

import tritonserver

# As its modules say them, which all do `import tritonserver` alone.
USED = [
    "DataType.INT32",
    "DataType.UINT32",
    "InferenceResponse",
    "InvalidArgumentError",
    "Model",
    "Model.async_infer",
    "Model.config",
    "Model.create_request",
    "ModelControlMode.EXPLICIT",
    "Server",
    "Server.load",
    "Server.metrics",
    "Server.model",
    "Server.models",
    "Server.ready",
    "Server.start",
    "Server.stop",
    "Server.unload",
    "Tensor",
    "TritonError",
    "_api._response.InferenceResponse",
]


def test_openai_front_end_finds_all_that_it_uses():
    program = "import tritonserver\n" + "\n".join(f"tritonserver.{name}" for name in USED)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_private_names_are_the_public_classes():
    from tritonserver._api._response import (  # noqa: PLC0415
        AsyncResponseIterator,
        InferenceResponse,
        ResponseIterator,
    )

    assert InferenceResponse is tritonserver.InferenceResponse
    assert AsyncResponseIterator.__module__ == ResponseIterator.__module__


def test_openai_front_end_finds_the_repository_of_a_server():
    server = tritonserver.Server(model_repository="models", log_info=True)

    assert server.options.model_repository == "models"


def test_openai_front_end_reads_models_and_texts(server):
    found = {name: server.model(name).config() for name, _ in server.models(exclude_not_ready=True)}
    (response,) = server.model("strings").infer(inputs={"INPUT0": ["häuser"]})
    text = response.outputs["OUTPUT0"]

    assert {config["backend"] for config in found.values()} == {"python"}
    assert found["strings"]["input"][0]["name"] == "INPUT0"
    # A text is its length in four bytes and itself, where the tensor's memory is.
    assert text.size == 4 + len("häuser".encode())
    assert ctypes.string_at(text.data_ptr + 4, text.size - 4).decode() == "häuser"


@pytest.mark.e2e
def test_log_of_a_server_is_on_standard_error(tmp_path):
    program = (
        "import tritonserver\n"
        f"server = tritonserver.Server(model_repository={str(tmp_path)!r}, log_error=True)\n"
        "server.start()\n"
        "import logging\n"
        "logging.getLogger('pytriton').error('this went wrong')\n"
        "print('answer')\n"
        "server.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.stdout == "answer\n"
    assert "this went wrong" in done.stderr
