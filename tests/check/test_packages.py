# SPDX-License-Identifier: Apache-2.0
import pytest

from pytriton.tools.check import environment
from pytriton.tools.check.environment import installed_packages, package_findings
from pytriton.tools.check.report import State


@pytest.fixture
def installed(monkeypatch):
    """Pretends that distributions have other versions, or none."""
    versions = {}
    real = environment.version_of
    monkeypatch.setattr(
        environment,
        "version_of",
        lambda name: versions[name] if name in versions else real(name),
    )
    return versions


def failures():
    return [finding for finding in package_findings() if finding.state is State.FAILED]


def named(name):
    (found,) = (
        finding for finding in package_findings() if finding.name.partition("==")[0] == name
    )
    return found


def test_packages_of_this_environment_will_do():
    assert failures() == []


@pytest.mark.parametrize("name", ["pytriton", "numpy", "tritonclient", "uvloop", "grpcio"])
def test_packages_that_are_needed_are_listed_with_their_versions(name):
    assert named(name).name == f"{name}=={environment.version_of(name)}"


def test_packages_for_tests_are_not_listed():
    assert not [finding for finding in package_findings() if "pytest" in finding.name]


def test_missing_package_is_a_failure(installed):
    installed["orjson"] = None

    (failure,) = failures()
    assert (failure.name, failure.value) == ("orjson", "not installed")


@pytest.mark.parametrize("version", ["1.24.4", "1.9", "0"])
def test_package_that_is_too_old_is_a_failure(installed, version):
    installed["numpy"] = version

    (failure,) = failures()
    assert (failure.name, failure.value) == (f"numpy=={version}", "expected 1.25 or newer")


@pytest.mark.parametrize("version", ["1.25", "1.25.0", "2.0.0rc1", "10.0+local"])
def test_package_that_is_new_enough_is_a_fact(installed, version):
    installed["numpy"] = version

    assert named("numpy").state is State.FACT


@pytest.mark.parametrize("name", ["torch", "tritonclient", "opentelemetry-sdk"])
def test_missing_optional_package_is_said_to_be_fine(installed, name):
    installed[name] = None

    assert "optional" in named(name).value
    assert failures() == []


def test_interface_is_named_as_tests_of_its_users_look_for_it():
    assert "nvidia-pytriton==" in named("interface").value


def test_other_distribution_of_the_same_module_is_a_failure(installed):
    installed["nvidia-pytriton"] = "0.7.0"

    (failure,) = failures()
    assert failure.name == "nvidia-pytriton==0.7.0"
    assert "both provide the module" in failure.value


def test_package_that_was_never_installed_is_a_failure(installed):
    installed["pytriton"] = None

    assert [failure.name for failure in failures()] == ["pytriton"]


def test_all_packages_are_listed_with_their_places():
    lines = installed_packages().splitlines()

    assert any(line.startswith("numpy==") and line.endswith(")") for line in lines)
