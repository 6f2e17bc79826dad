# SPDX-License-Identifier: Apache-2.0
"""What the page on Kubernetes shows works: commands, values, objects and names."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest
import yaml

from tests.deploy.helm import CHART, MODES, REPOSITORY, mode_values, render, set_values
from tests.deploy.schemas import validate
from tests.snippets import blocks, snippets

PAGE = REPOSITORY / "docs/kubernetes.md"
TEXT = PAGE.read_text()
FILES = re.compile(r"(?:\.\./)?(deploy/[\w./-]+)")
TITLES = {block.title for block in blocks(PAGE) if block.title}
CHART_NAME = str(CHART.relative_to(REPOSITORY))


def commands(program: str) -> list[list[str]]:
    """The commands of the page, and those in its tables, without their program."""
    lines = [line for block in snippets(PAGE, "shell") for line in block.text.splitlines() if line]
    lines += re.findall(r"`(kubectl [^`]+|helm [^`]* [^`]+)`", TEXT)
    found = [shlex.split(line) for line in lines]
    assert {command[0] for command in found} <= {"docker", "helm", "kubectl"}
    return [command[1:] for command in found if command[0] == program]


def helm_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--install", action="store_true", required=True)
    parser.add_argument("--values", action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("name")
    parser.add_argument("chart")
    return parser


def test_helm_commands_install_what_is_there():
    repositories = {command[2] for command in commands("helm") if command[:2] == ["repo", "add"]}
    upgrades = [command for command in commands("helm") if command[0] == "upgrade"]
    releases = []
    for command in upgrades:
        arguments = helm_parser().parse_args(command[1:])
        values: dict[str, object] = {}
        for name in arguments.values:
            values |= yaml.safe_load((REPOSITORY / name).read_text())
        if arguments.set:
            values |= set_values(*arguments.set)
        if arguments.chart == CHART_NAME:
            releases += render(values, name=arguments.name)
        else:
            assert arguments.chart.partition("/")[0] in repositories

    assert len(releases) == 3
    for release in releases:
        assert not release.error
        assert release.one("Deployment")["metadata"]["name"] == "models-pytriton"


def test_first_command_needs_no_claim():
    (command,) = [c for c in commands("helm") if "--set" in c]
    (release,) = render(set_values(command[-1]), name="models")
    pod = release.one("Deployment")["spec"]["template"]["spec"]

    assert pod["containers"][0]["image"] == "registry.example.com/models:1"
    assert [volume["name"] for volume in pod["volumes"]] == ["temporary"]


def test_kubectl_and_docker_commands_use_files_and_objects_that_exist():
    (release,) = render({}, name="models")
    names = {f"{o['kind'].lower()}/{o['metadata']['name']}" for o in release.objects}
    for command in [*commands("kubectl"), *commands("docker")]:
        named = [command[at + 1] for at, part in enumerate(command) if part == "-f"]
        assert all((REPOSITORY / name).exists() or name in TITLES for name in named), command
        verb = command[0]
        assert verb in {"apply", "rollout", "port-forward", "create", "build", "push"}
        objects = [part for part in command if re.fullmatch(r"(?:deployment|service)/\S+", part)]
        assert set(objects) <= names
        assert len(named) == (verb in {"apply", "build"})
        assert len(objects) == (verb in {"rollout", "port-forward"})


@pytest.mark.parametrize("block", snippets(PAGE, "yaml"), ids=str)
def test_yaml_of_the_page_is_an_object_or_values_of_the_chart(block):
    found = yaml.safe_load(block.text)
    if "apiVersion" in found:
        validate(found)
        return
    (release,) = render(found)

    assert not release.error
    for each in release.objects:
        validate(each)


def test_page_names_files_and_services_that_exist():
    assert all((REPOSITORY / name).exists() for name in FILES.findall(TEXT))
    for mode in MODES:
        assert f"deploy/helm/values/{mode.name}" in TEXT or mode.stem == "one-server"
        assert f"deploy/kubernetes/{mode.name}" in TEXT
    (release,) = render(mode_values(MODES[0]), name="models")
    headless = [o for o in release.objects if o["spec"].get("clusterIP") == "None"]
    assert f"dns:///{headless[0]['metadata']['name']}:8001" in TEXT


def test_settings_in_tables_are_values_of_the_chart():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    named = set(
        re.findall(r"`((?:models|ray|exit|autoscaling|metrics|networkPolicy)\.[\w.]+)", TEXT)
    )

    assert len(named) > 8
    for name in named:
        found = values
        for part in name.split("."):
            assert part in found, name
            found = found[part]


def test_seconds_and_counts_of_the_page_are_the_defaults():
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert f"`exit.graceSeconds` ({values['exit']['graceSeconds']})" in TEXT
    assert f"`exit.timeoutSeconds` ({values['exit']['timeoutSeconds']})" in TEXT
    assert f"ray[default]=={values['ray']['version']}" in TEXT
