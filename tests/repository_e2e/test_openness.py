# SPDX-License-Identifier: Apache-2.0
"""What `pytriton check --secure` says of servers, from the outside."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pytriton.base.security import VALID_TRITON_ENDPOINTS
from pytriton.tools.check.openness import AttemptAnswer, http_questions, judge
from pytriton.tools.check.report import State
from tests.repository_e2e.model_files import code, model

PLUS = {"plus": model(code("y = x + 1"))}
QUESTIONS = {question.name: question for question in http_questions("nobody")}
GROUPS = ",".join(sorted(VALID_TRITON_ENDPOINTS))


def check(server, *options):
    """The findings by port and name, and the exit code."""
    address = f"--url=localhost:{server.http_port}"  # your own server tells its other ports
    command = [sys.executable, "-m", "pytriton", "check", "--secure", "--json", address]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, check=False)
    document = json.loads(done.stdout)
    found = {
        (section["title"].split(",")[0].split()[-1], finding["name"]): finding["state"]
        for section in document["sections"]
        for finding in section["findings"]
    }
    return found, done.returncode


@pytest.mark.parametrize(
    "name, status, text, state",
    [
        ("inference", 401, "", State.OK),
        ("inference", 403, "", State.OK),
        ("inference", "UNAUTHENTICATED", "", State.OK),
        ("inference", "UNAVAILABLE", "This protocol is restricted, expecting header 'x'", State.OK),
        ("inference", 404, "Request for unknown model: 'nobody' is not found", State.FAILED),
        ("inference", 404, '{"error":"Not Found"}', State.OK),
        ("inference", "no answer", "timed out", State.NOTE),
        ("inference", 403, "guest has no right to inference", State.OK),
        ("inference", 403, "guest has no right to inference of the model 'x'", State.FAILED),
        ("model-repository", 400, "load is not allowed in model control mode 'none'", State.OK),
        ("model-repository", 500, "failed to load 'nobody'", State.FAILED),
        ("metadata", 200, "{}", State.NOTE),
        ("health", 200, "", State.NOTE),
        ("recording", 200, "{}", State.FAILED),
    ],
)
def test_answers_to_strangers_are_judged(name, status, text, state):
    assert judge(QUESTIONS[name], AttemptAnswer(status, text)).state is state


def test_server_without_protection_is_open(start_server):
    server = start_server(PLUS, flags=["--model-control-mode=explicit"]).await_ports()
    found, code = check(server)
    is_open = {key for key, state in found.items() if state == "failed"}

    assert code == 1
    for port in ("HTTP", "gRPC"):
        assert {(port, "inference"), (port, "model-repository"), (port, "logging")} <= is_open
    assert ("HTTP", "pages of other sites") not in is_open


def test_server_with_a_secret_is_open_for_nothing_but_health_and_metrics(start_server):
    flags = [
        f"--http-restricted-api={GROUPS}:secret=it",
        f"--grpc-restricted-protocol={GROUPS}:secret=it",
        "--http-address=127.0.0.1",
        "--model-control-mode=explicit",
    ]
    server = start_server(PLUS, flags=flags).await_ports()
    found, code = check(server)

    assert [key for key, state in found.items() if state == "failed"] == []
    assert found["HTTP", "inference"] == found["gRPC", "model-repository"] == "ok"
    assert found["settings", "exceptions of models"] == "note"
    assert code == 0


def test_model_that_a_policy_opens_to_everybody_is_found(start_server, tmp_path):
    policy = tmp_path / "auth.toml"
    policy.write_text(
        'anonymous = "guest"\n[principals.guest]\napis = ["inference"]\nmodels = ["plus"]\n'
    )
    flags = [f"--auth-config={policy}", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    server = start_server(PLUS, flags=flags).await_ports()
    found, code = check(server)

    assert [key for key, state in found.items() if state == "failed"] == [
        ("HTTP", "inference"),
        ("gRPC", "inference"),
    ]
    assert code == 1


def test_port_where_nobody_listens_is_noted():
    done = subprocess.run(
        [sys.executable, "-m", "pytriton", "check", "--secure", "--url=localhost:1"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )

    assert "nobody listens there" in done.stdout
    assert done.returncode == 0


def test_address_that_is_none_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "pytriton", "check", "--secure", "--url=ftp://x"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "expected an address" in done.stderr
