# SPDX-License-Identifier: Apache-2.0
"""What `pytriton serve` binds of a file."""

from __future__ import annotations

import sys

import pytest

from pytriton.binding.server_process import ServerProcess
from pytriton.model_config import Ray
from pytriton.tools.commands.serve.loading import ServeError, load
from pytriton.tools.commands.serve.options import read_options

MODELS = """
from pytriton.decorators import model
from pytriton.model_config import Ray

@model(instances=Ray(min=1, max=4, num_gpus=0.5))
def scale(x: float) -> float:
    return 3 * x
"""


class FakeTriton:
    def bind(self, *arguments, **settings):
        self.settings = settings


@pytest.mark.parametrize(
    "options, expected",
    [
        ([], Ray(min=1, max=4, num_gpus=0.5)),
        (["--instances", "3"], Ray(count=3, num_gpus=0.5)),
    ],
)
def test_command_says_how_many_instances_run_on_a_cluster(options, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    file = tmp_path / "models_on_ray.py"
    file.write_text(MODELS)
    triton = FakeTriton()

    load(read_options([str(file), *options]), triton)

    assert triton.settings["instances"] == expected


def test_wrong_declaration_is_told_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    file = tmp_path / "chatty.py"
    file.write_text("from pytriton.decorators import model\n\nmodel(openai='chatt')(print)\n")

    with pytest.raises(ServeError, match=r"^chatty\.py, line 3: Expected chat, .* got 'chatt'\.$"):
        load(read_options([str(file)]), FakeTriton())


@pytest.mark.parametrize(
    "start", ["with Triton(): pass", "Triton().serve()", "triton = Triton(); triton.run()"]
)
def test_file_that_starts_a_server_of_its_own_is_refused(start, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(ServerProcess, "start", None)  # it would open ports
    file = tmp_path / "program.py"
    file.write_text(f"from pytriton.triton import Triton\n{start}\ndef add(a: float) -> float: ...")

    with pytest.raises(ServeError, match=r"program\.py, line 2: This starts .*__main__"):
        load(read_options([str(file)]), FakeTriton())

    file.write_text(
        "from pytriton.triton import Triton\ndef add(a: float) -> float: ...\n"
        f'if __name__ == "__main__":\n    {start}'
    )
    assert load(read_options([str(file)]), FakeTriton()).names == ["add"]
