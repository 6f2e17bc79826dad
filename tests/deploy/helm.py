# SPDX-License-Identifier: Apache-2.0
"""Renders the chart with Helm itself, which `helm-python-sdk` has as a library.

`python -m tests.deploy.helm` writes the manifests of `deploy/kubernetes` anew. Helm runs in a
process of its own: its threads would stay in the process of the tests, in which others fork.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

REPOSITORY = pathlib.Path(__file__).parent.parent.parent
CHART = REPOSITORY / "deploy/helm/pytriton"
MODES = sorted((REPOSITORY / "deploy/helm/values").glob("*.yaml"))
TIMEOUT_S = 120
OF_HELM = re.compile(r"^ +(?:helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", re.MULTILINE)


@dataclass
class Release:
    """What Helm made of the chart with some values: texts by template, or an error."""

    texts: dict[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def text(self) -> str:
        """All objects as one file."""
        assert not self.error
        texts = [
            text.strip("\n-").strip() for name, text in self.texts.items() if name.endswith("yaml")
        ]
        return "\n---\n".join(text for text in texts if text) + "\n"

    @functools.cached_property
    def objects(self) -> list[dict[str, Any]]:
        """All objects."""
        return [each for each in yaml.safe_load_all(self.text) if each]

    def one(self, kind: str) -> dict[str, Any]:
        """The only object of this kind."""
        (found,) = [each for each in self.objects if each["kind"] == kind]
        return found

    @property
    def kinds(self) -> list[str]:
        """The kinds of all objects, sorted."""
        return sorted(each["kind"] for each in self.objects)


def mode_values(path: pathlib.Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def render(*values: dict[str, Any], name: str = "pytriton", cluster: str = "") -> list[Release]:
    """Returns the chart rendered with each of these values; `lookup` asks the cluster, if any."""
    cases = [{"values": each, "name": name, "cluster": cluster} for each in values]
    return [Release(**answer) for answer in _ask(cases)]


def lint(*values: dict[str, Any]) -> list[Any]:
    """Returns what Helm's linter says about the chart with each of these values."""
    return _ask([{"lint": each} for each in values])


def set_values(*expressions: str) -> dict[str, Any]:
    """Returns the values of `--set` arguments."""
    (found,) = _ask([{"set": list(expressions)}])
    return found


def plain_manifest(release: Release, mode: pathlib.Path) -> str:
    """Returns a file for `kubectl apply`, without what only Helm needs to know."""
    head = (
        f"# Made from deploy/helm/pytriton with deploy/helm/values/{mode.name}: change those, and\n"
        "# `python -m tests.deploy.helm` makes it anew. docs/kubernetes.md has the reasons.\n"
    )
    return head + OF_HELM.sub("", release.text)


def _ask(cases: list[Any]) -> list[Any]:
    if importlib.util.find_spec("helm_python") is None:
        pytest.skip("helm-python-sdk is not installed")
    process = subprocess.run(
        [sys.executable, "-m", "tests.deploy.helm_child", str(CHART)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        timeout=TIMEOUT_S,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def main() -> None:
    for mode, release in zip(MODES, render(*map(mode_values, MODES)), strict=True):
        path = REPOSITORY / "deploy/kubernetes" / mode.name
        path.write_text(plain_manifest(release, mode))


if __name__ == "__main__":
    main()
