# SPDX-License-Identifier: Apache-2.0
"""The script of docs/cloud_endpoints.md starts a server as SageMaker needs it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys

from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports
from tests.snippets import snippets

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "cloud_endpoints.md"


def answers(port):
    with contextlib.suppress(OSError):
        return call(port, "/ping").status == 200
    return False


def test_script_of_the_page_serves_sagemaker(tmp_path):
    (script,) = snippets(PAGE, "bash")
    assert "--model-repository=/opt/ml/model " in script.text
    path = tmp_path / "serve"
    path.write_text(script.text.replace("/opt/ml/model ", f"{tmp_path} "))
    path.chmod(0o755)
    (port,) = free_ports(1)
    programs = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        [path, "serve"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PATH": programs, "SAGEMAKER_BIND_TO_PORT": str(port)},
    )
    try:
        assert eventually(lambda: answers(port))
        assert call(port, "/models").json == {"models": []}
    finally:
        process.terminate()
        assert process.wait() == 0
