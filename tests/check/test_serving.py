# SPDX-License-Identifier: Apache-2.0
import os
import threading

import pytest

from pytriton.tools.check import serving
from pytriton.tools.check.report import CheckReport, State

pytestmark = pytest.mark.e2e


@pytest.fixture
def report():
    return CheckReport(lambda line: None)


def found(report):
    (section,) = report.sections
    return {finding.name: finding for finding in section.findings}


def test_server_that_cannot_start_is_all_that_is_told(report, monkeypatch, tmp_path):
    def no_models(triton):
        raise RuntimeError("nothing to bind")

    monkeypatch.setattr(serving, "bind_models", no_models)

    serving.example_add_sub(tmp_path, report)

    (start,) = found(report).values()
    assert start.name == "server starts"
    assert start.state is State.FAILED
    assert start.value == "Error occurred in command: RuntimeError: nothing to bind"


def test_script_that_ends_early_is_a_failure_with_its_output(report, monkeypatch, tmp_path):
    monkeypatch.setattr(serving, "_REPOSITORY", tmp_path / "nowhere")

    serving.example_repository(tmp_path, report)

    (start,) = found(report).values()
    assert start.state is State.FAILED
    assert "The server ended before it was ready" in start.value
    assert "nowhere" in start.value


def test_client_that_reads_something_else_is_a_failure(report, monkeypatch, tmp_path):
    monkeypatch.setattr(serving, "_STREAM", [3, 2])

    serving.example_add_sub(tmp_path, report)

    steps = found(report)
    assert (
        "ValueError: Expected a stream of [3, 2], got [3, 2, 1]"
        in steps["generate_stream over HTTP"].value
    )
    assert steps["ModelClient over HTTP"].state is State.OK
    assert steps["server stops"].state is State.OK


def test_client_that_hangs_is_left_behind(report, monkeypatch, tmp_path):
    release = threading.Event()
    monkeypatch.setattr(serving, "_STEP_LIMIT_S", 0.1)
    monkeypatch.setattr(
        serving, "model_client_checks", lambda ports: {"client": lambda: str(release.wait())}
    )

    serving.example_repository(tmp_path, report)
    release.set()

    steps = found(report)
    assert "TimeoutError: Expected an answer within 0.1 s, got none" in steps["client"].value
    assert steps["server stops"].state is State.OK


def test_server_that_does_not_answer_is_stopped_without_asking_more(report, monkeypatch, tmp_path):
    def unreachable(ports, path):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(serving, "status_of", unreachable)

    serving.example_add_sub(tmp_path, report)

    steps = found(report)
    assert list(steps) == ["server starts", "server answers", "server stops"]
    assert "Network is unreachable" in steps["server answers"].value
    assert steps["server stops"].state is State.OK


def test_proxy_is_not_asked_for_the_own_machine(report, monkeypatch, tmp_path):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.org")

    serving.example_add_sub(tmp_path, report)

    assert report.count(State.FAILED) == 0
    assert os.environ["no_proxy"] == "example.org"


def test_repository_is_served_without_the_command_on_the_path(report, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    serving.example_repository(tmp_path, report)

    assert report.count(State.FAILED) == 0
    assert list(found(report)) == [
        "server starts",
        "server answers",
        "ModelClient over HTTP",
        "ModelClient over gRPC",
        "server stops",
    ]
