# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import socket
import stat
import sys

import psutil
import pytest

from pytriton.base.sandbox import SandboxMachine
from pytriton.tools.check import environment
from pytriton.tools.check.environment import is_port_free, report_environment
from pytriton.tools.check.report import CheckReport, State


def environment_report():
    report = CheckReport(lambda line: None)
    report_environment(report)
    return report


def section(title):
    (found,) = (one for one in environment_report().sections if one.title == title)
    return found


def findings(title):
    return {finding.name: finding for finding in section(title).findings}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a shell script of that name first on the path."""

    def make(name, script):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path))

    return make


def test_this_environment_is_one_to_serve_in():
    assert environment_report().count(State.FAILED) == 0


def test_system_is_named_in_quotes():
    assert findings("Checking OS version")["OS version"].value.startswith('"')


def test_parts_that_sandboxes_lack_are_told(monkeypatch):
    monkeypatch.setattr(environment, "probe", lambda: SandboxMachine(system="Linux", landlock=3))

    found = findings("Checking sandboxes of models")

    assert found["without seccomp"].state is State.NOTE
    assert found["without a mount namespace"].state is State.FACT
    assert "--sandbox" not in found


def test_machine_with_all_parts_of_sandboxes_is_told(monkeypatch):
    machine = SandboxMachine(
        system="Linux",
        landlock=7,
        has_filters=True,
        has_mounts=True,
        groups={"pids": "/p", "memory": "/m"},
    )
    monkeypatch.setattr(environment, "probe", lambda: machine)

    (finding,) = section("Checking sandboxes of models").findings

    assert str(finding.value) == "on and strict work here"


def test_limits_of_a_container_are_told(monkeypatch):
    monkeypatch.setattr(environment, "core_limit", lambda: 0.5)
    monkeypatch.setattr(environment, "memory_limit", lambda: 256 << 20)

    found = findings("Checking psutil stats")

    assert "limited to 0.5 by its container" in found["cores"].value
    assert "limited to 256 MiB by its container" in found["memory"].value
    assert found["cores"].state is found["memory"].state is State.NOTE


@pytest.mark.parametrize("limit", [None, 1 << 60])
def test_machine_without_limits_below_its_own_is_described_alone(monkeypatch, limit):
    monkeypatch.setattr(environment, "core_limit", lambda: limit)
    monkeypatch.setattr(environment, "memory_limit", lambda: limit)
    monkeypatch.setattr(environment, "scheduled_cores", lambda: 8)

    found = findings("Checking psutil stats")

    assert "limited" not in found["cores"].value + found["memory"].value
    assert found["cores"].state is State.FACT


def test_few_open_files_are_a_note(monkeypatch):
    monkeypatch.setattr(environment.resource, "getrlimit", lambda which: (64, 64))

    assert findings("Checking psutil stats")["open files"].state is State.NOTE


def test_shared_memory_folder_is_said_not_to_be_needed():
    assert "not needed" in findings("Checking psutil stats")["/dev/shm"].value


def test_gpu_is_reported_as_its_tool_does(program):
    program("nvidia-smi", "echo one GPU")

    (finding,) = section("Checking GPU").findings
    assert finding.name == "nvidia-smi process finished with 0"
    assert finding.value == "one GPU"


def test_gpu_tool_that_fails_is_a_note(program):
    program("nvidia-smi", "echo no driver; exit 9")

    (finding,) = section("Checking GPU").findings
    assert finding.name == "nvidia-smi process finished with 9"
    assert finding.state is State.NOTE


def test_missing_programs_are_no_failure(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "not found" in findings("Checking GPU")["nvidia-smi"].value
    assert "not found" in findings("Checking compiler and C libraries")["gcc"].value


@pytest.fixture
def taken_port(monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(environment, "_PORTS", {"gRPC": port})
        yield port


def test_taken_port_is_a_note_that_says_by_whom_and_what_to_do(taken_port):
    finding = findings("Checking default ports")[f"gRPC {taken_port}"]

    assert not is_port_free(taken_port)
    assert finding.state is State.NOTE
    assert f"(process {os.getpid()})" in finding.value
    assert "TritonConfig(grpc_port=...)" in finding.value


def test_port_of_a_process_that_may_not_be_looked_at_is_a_note(taken_port, monkeypatch):
    def refuse(kind):
        raise psutil.AccessDenied

    monkeypatch.setattr(environment.psutil, "net_connections", refuse)

    finding = findings("Checking default ports")[f"gRPC {taken_port}"]
    assert finding.state is State.NOTE
    assert "only its user or root" in finding.value


def test_proxy_that_grpc_takes_is_a_note_without_its_password(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://user:pass@proxy")

    finding = findings("Checking environment variables")["proxy"]

    assert finding.state is State.NOTE
    assert "https_proxy" in finding.value
    assert "pass" not in finding.value


def test_variables_that_matter_are_shown_without_secrets(monkeypatch):
    monkeypatch.setenv("PYTRITON_HOME", "/some/folder")
    monkeypatch.setenv("PYTRITON_ACCESS_TOKEN", "abc")
    monkeypatch.setenv("HTTP_PROXY", "http://user:pass@proxy")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=abc")
    monkeypatch.setenv("UNRELATED", "abc")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/some/folder:" * 1000)

    shown = findings("Checking environment variables")

    assert shown["PYTRITON_HOME"].value == "/some/folder"
    assert shown["LD_LIBRARY_PATH"].value == ("/some/folder:" * 1000)[:300] + " ..."
    assert shown.keys().isdisjoint(
        {"PYTRITON_ACCESS_TOKEN", "HTTP_PROXY", "OTEL_EXPORTER_OTLP_HEADERS", "UNRELATED"}
    )


def test_what_cannot_be_read_does_not_hide_the_rest(monkeypatch):
    def broken():
        raise RuntimeError("no such counter")

    monkeypatch.setattr(environment.psutil, "swap_memory", broken)

    report = environment_report()

    (failure,) = section_failures(report)
    assert failure.value == "Error occurred in command: RuntimeError: no such counter"
    assert report.sections[-1].title == "Checking environment variables"


def test_missing_package_for_conditions_does_not_hide_the_others(monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.markers", None)
    names = {finding.name.partition("==")[0] for finding in environment.package_findings()}

    assert {"numpy", "msgspec", "packaging"} <= names


def section_failures(report):
    return [
        finding
        for one in report.sections
        for finding in one.findings
        if finding.state is State.FAILED
    ]
