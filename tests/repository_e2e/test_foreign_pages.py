# SPDX-License-Identifier: Apache-2.0
"""Requests that a page of another site makes a browser send, to every port that speaks HTTP."""

from __future__ import annotations

import base64
import json

import pytest

from tests.e2e.http_client import call
from tests.free_ports import free_ports
from tests.repository_e2e.model_files import code, model

PLUS = {"plus": model(code("y = x + 1"))}
INFER = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,1],"data":[1]}]}'
ROUTES = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
# A body of this type needs no preflight request.
CROSS_SITE = {
    "Content-Type": "text/plain",
    "Origin": "https://evil.example",
    "Sec-Fetch-Site": "cross-site",
}
OLD_BROWSER = {"Content-Type": "text/plain", "Origin": "https://evil.example"}


class Ports:
    """A server with all its ports that speak HTTP, and the requests of a foreign page to them."""

    def __init__(self, server, sagemaker: int, vertex_ai: int) -> None:
        self.server = server
        self.requests = [
            (server.http_port, "/v2/models/plus/infer", INFER),
            (server.http_port, "/v2/models/plus/generate", b'{"X":1}'),
            (server.http_port, "/v2/repository/index", b""),
            (server.http_port, "/v2/logging", b'{"log_verbose_level":1}'),
            (server.http_port, "/v1/chat/completions", b'{"model":"plus","messages":[]}'),
            (server.metrics_port, "/page/api/v2/models/plus/infer", INFER),
            (sagemaker, "/invocations", INFER),
            (sagemaker, "/models", b'{"model_name":"evil","url":"/tmp"}'),
            (vertex_ai, "/predict", INFER),
        ]


@pytest.fixture(scope="module", params=["0", "2"], ids=["one process", "front ends"])
def ports(request, start_module_server):
    sagemaker, vertex_ai = free_ports(2)
    server = start_module_server(
        PLUS,
        flags=[
            "--model-control-mode=explicit",
            "--load-model=plus",
            "--page-token=token",
            "--allow-sagemaker=true",
            f"--sagemaker-port={sagemaker}",
            "--allow-vertex-ai=true",
            f"--vertex-ai-port={vertex_ai}",
            "--vertex-ai-default-model=plus",
        ],
        environment={
            **ROUTES,
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "plus",
            "PYTRITON_FRONTEND_PROCESSES": request.param,
        },
    )
    return Ports(server.await_ready(), sagemaker, vertex_ai)


@pytest.mark.parametrize("headers", [CROSS_SITE, OLD_BROWSER], ids=["now", "old browser"])
def test_foreign_page_loads_no_model(ports, headers, tmp_path):
    ran = tmp_path / "ran"
    files = {
        "config": json.dumps({"backend": "python"}),
        "file:1/model.py": base64.b64encode(f"open({str(ran)!r}, 'w')".encode()).decode(),
    }
    body = json.dumps({"parameters": files}).encode()

    answer = call(ports.server.http_port, "/v2/repository/models/evil/load", body, headers)

    assert answer.status == 403
    assert "Origin 'https://evil.example'" in answer.error
    assert f"Host '127.0.0.1:{ports.server.http_port}'" in answer.error
    assert not ran.exists()
    assert "evil" not in ports.server.index()


@pytest.mark.parametrize("headers", [CROSS_SITE, OLD_BROWSER], ids=["now", "old browser"])
def test_foreign_page_changes_and_runs_nothing_on_any_port(ports, headers):
    answers = [call(port, path, body, headers) for port, path, body in ports.requests]

    assert [answer.status for answer in answers] == [403] * len(answers)
    assert all("https://evil.example" in answer.error for answer in answers)


def test_own_page_and_other_clients_are_served_on_every_port(ports):
    for port, path, body in ports.requests:
        for own in (
            {},
            {"Origin": f"http://127.0.0.1:{port}"},
            # A proxy in front of it, which has changed the Host.
            {"Origin": "https://models.example", "Sec-Fetch-Site": "same-origin"},
        ):
            headers = {"triton-access-token": "token", **own}
            assert call(port, path, body, headers).status != 403, (path, own)


def test_name_that_a_foreign_page_has_bound_to_this_machine_is_refused(ports):
    server = ports.server
    for port, path in ((server.http_port, "/v2"), (server.metrics_port, "/metrics")):
        refused = call(port, path, headers={"Host": f"evil.example:{port}"})
        answered = [
            call(port, path, headers={"Host": host}).status
            for host in (f"localhost:{port}", "models.localhost", f"[::1]:{port}", "127.0.0.1")
        ]

        assert refused.status == 403
        assert f"got Host 'evil.example:{port}'" in refused.error
        assert answered == [200] * 4
