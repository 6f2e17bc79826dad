# SPDX-License-Identifier: Apache-2.0
import socket
import stat

import pytest

from pytriton.check import environment
from pytriton.check.environment import environment_sections, installed_packages, is_port_free
from pytriton.check.report import State, failures


def section(title):
    (found,) = (one for one in environment_sections() if one.title == title)
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
    assert failures(environment_sections()) == []


def test_system_is_named_in_quotes():
    assert findings("Checking OS version")["OS version"].value.startswith('"')


def test_packages_that_are_needed_are_listed_with_their_versions():
    names = findings("Checking installed packages")

    assert any(name.startswith("pytriton==") for name in names)
    assert any(name.startswith("numpy==") for name in names)


def test_missing_package_is_a_failure(monkeypatch):
    monkeypatch.setattr(environment, "_PACKAGES", ("no-such-package",))

    assert findings("Checking installed packages")["no-such-package"].state is State.FAILED


def test_other_distribution_of_the_same_module_is_a_failure(monkeypatch):
    monkeypatch.setattr(environment, "_NAMESAKE", "numpy")

    (failure,) = failures([section("Checking installed packages")])
    assert failure.name.startswith("numpy==")
    assert "both provide the module" in failure.value


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


def test_taken_port_is_a_note(monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(environment, "_PORTS", {"gRPC": port})

        finding = findings("Checking default ports")[f"gRPC {port}"]

        assert not is_port_free(port)
    assert finding.state is State.NOTE
    assert "grpc_port" in finding.value


def test_variables_that_matter_are_shown_without_secrets(monkeypatch):
    monkeypatch.setenv("PYTRITON_HOME", "/some/folder")
    monkeypatch.setenv("PYTRITON_ACCESS_TOKEN", "abc")
    monkeypatch.setenv("HTTP_PROXY", "http://user:pass@proxy")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=abc")
    monkeypatch.setenv("UNRELATED", "abc")

    shown = findings("Checking environment variables")

    assert shown["PYTRITON_HOME"].value == "/some/folder"
    assert shown.keys().isdisjoint(
        {"PYTRITON_ACCESS_TOKEN", "HTTP_PROXY", "OTEL_EXPORTER_OTLP_HEADERS", "UNRELATED"}
    )


def test_what_cannot_be_read_does_not_hide_the_rest(monkeypatch):
    def broken():
        raise RuntimeError("no such counter")

    monkeypatch.setattr(environment.psutil, "swap_memory", broken)

    sections = list(environment_sections())

    (failure,) = failures(sections)
    assert failure.value == "Error occurred in command: RuntimeError: no such counter"
    assert sections[-1].title == "Checking environment variables"


def test_all_packages_are_listed_with_their_places():
    lines = installed_packages().splitlines()

    assert any(line.startswith("numpy==") and line.endswith(")") for line in lines)
