# SPDX-License-Identifier: Apache-2.0
"""docs/signed_models.md: its commands make signatures that count, and its table has the options."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from pytriton.base.settings import BY_NAME
from pytriton.serving.repository.signing.signers import Signers
from pytriton.serving.repository.signing.verification import Question, verify
from pytriton.serving.server.command.arguments import parse
from pytriton.serving.server.options.server_options import ServerOptions
from tests.repository.scene import write_model

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "signed_models.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def folder(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    write_model(tmp_path / "models", "echo")
    return tmp_path


def run(folder, *blocks):
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in blocks:
        subprocess.run(
            ["bash", "-ec", block], cwd=folder, check=True, env={**os.environ, "PATH": path}
        )


def test_commands_for_a_key_make_a_signature_that_counts(folder, monkeypatch):
    make_key, sign, serve, look, _ = BLOCKS
    run(folder, *make_key.splitlines(), sign, look)

    monkeypatch.chdir(folder)
    options = ServerOptions.from_triton_config(parse(serve.split()[1:]).values)
    signing = options.repository.signing
    assert signing.is_required
    assert signing.signers == Signers(keys=("signing.pub",))
    assert verify(Question("models/echo", "model.sig", signing.signers)).problem == ""


def test_commands_for_certificates_make_a_signature_that_counts(folder):
    run(folder, BLOCKS[-1])

    signers = Signers(certificates=(str(folder / "root.pem"),))
    assert verify(Question(str(folder / "models/echo"), "model.sig", signers)).problem == ""


def test_page_has_all_options():
    names = {name for name in BY_NAME if "signing" in name or "signed" in name}

    assert len(names) == 6
    assert names <= set(re.findall(r"--([a-z-]+)", TEXT))
