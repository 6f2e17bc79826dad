# SPDX-License-Identifier: Apache-2.0
"""Requests that front ends refuse, as the page tells them: of HTTP, gRPC and OpenAI's routes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.e2e.http_client import call
from tests.page.conftest import HEADERS, WORDS, WORDS_CONFIG
from tests.page.test_page_failures import Served, body
from tests.repository_e2e.model_files import model

KEY, VALUE = "x-key", "sesame-of-the-test"
TALK = model(WORDS, WORDS_CONFIG + 'parameters { key: "openai" value { string_value: "chat" } }\n')


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two front ends"])
def server(start_server, request):
    started = start_server(
        {"plain": model(), "talk": TALK},
        flags=[
            f"--frontend-processes={request.param}",
            f"--http-restricted-api=inference:{KEY}={VALUE}",
            f"--grpc-restricted-protocol=inference:{KEY}={VALUE}",
            "--http-max-input-size=1000",
        ],
        environment={"PYTRITON_PAGE_TOKEN": HEADERS["triton-access-token"]},
    ).await_ready()
    return SimpleNamespace(
        grpc=started.grpc_port, of=Served(started.http_port, started.metrics_port)
    )


def test_requests_without_authorisation_are_listed_without_secrets(server):
    of = server.of
    for headers in ({}, {KEY: "guessed-value"}):
        assert call(of.http_port, "/v2/models/plain/infer", body(1), headers).status == 403
    tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    with (
        triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client,
        pytest.raises(InferenceServerException, match="restricted"),
    ):
        client.infer("plain", [tensor], headers={f"triton-grpc-protocol-{KEY}": "guessed-value"})
    by_http = of.group(2, kind="Forbidden", model="plain")
    by_grpc = of.group(1, kind="Forbidden", model="")

    assert by_http["reason"] == by_grpc["reason"] == "REFUSED"
    assert by_http["place"] == "This API is restricted, expecting header '…'"
    assert by_grpc["place"] == "This protocol is restricted, expecting header '…'"
    told = json.dumps(of.groups())
    assert VALUE not in told
    assert "guessed-value" not in told
    assert of.errors("plain")["refused"] == 2


def chat(server, headers: dict[str, str], **members) -> int:
    """The status of a request to OpenAI's route."""
    content = json.dumps({"model": "talk", "messages": [], **members}).encode()
    return call(server.of.http_port, "/v1/chat/completions", content, headers).status
