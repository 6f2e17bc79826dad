# SPDX-License-Identifier: Apache-2.0
"""The commands of the pages on `pytriton serve`, with the output that they promise."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.commands.serve.serving import TIMEOUT_S, serving
from tests.examples.readme_commands import commands
from tests.examples.test_examples import environment
from tests.free_ports import free_ports
from tests.snippets import snippets

REPOSITORY = pathlib.Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("page", ["examples/serve/README.md", "docs/serve.md"])
def test_commands_of_a_page_do_what_it_says(page, tmp_path):
    folder = REPOSITORY
    if page.startswith("docs/"):  # the page gives the file that is served
        folder = tmp_path
        source = snippets(REPOSITORY / page, "python")[0].text
        (folder / "models.py").write_text(source)
    server, *questions = commands(REPOSITORY / page)
    ports = free_ports(3)

    assert server.arguments[1] == "serve"
    with serving(*server.arguments[2:], cwd=folder, **environment(ports)) as running:
        running.started()
        for question in questions:
            command = question.on_ports(ports)
            if command[1] == "infer":
                command += ["--url", f"127.0.0.1:{ports[0]}"]
            printed = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S
            ).stdout
            assert printed.rstrip("\n") == question.promised.rstrip("\n")


def test_declared_functions_can_be_called_as_before(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples" / "serve"))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    import models  # noqa: PLC0415  of the example

    assert models.greet("Ada") == "Hi Ada!"
    assert list(models.count_down(2)) == [2, 1]
