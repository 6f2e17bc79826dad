# SPDX-License-Identifier: Apache-2.0
"""Files around a `Triton`: the script of its user, modules called like ours, its workspace."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from pytriton.triton import Triton, TritonConfig
from tests.e2e.http_client import infer
from tests.e2e.waiting import DEADLINE_S


def test_script_without_a_main_guard_serves(start_script):
    # Everything at module level, imported a second time by nothing: the server never runs it.
    script = start_script(
        """
        print(os.getpid(), flush=True)
        triton = Triton()
        triton.bind("Model", identity, [X], [Y])
        triton.serve()
        """
    ).await_ready()

    assert infer(script.http_port, "Model", {"x": np.ones((1, 1), np.float32)})["y"] == 1
    script.process.send_signal(signal.SIGINT)
    output, _ = script.process.communicate(timeout=DEADLINE_S)
    assert output.splitlines() == [str(script.process.pid).encode()]


def test_users_file_called_like_a_module_of_ours_is_not_taken_for_it(tmp_path, ports):
    for name in ("server.py", "uvloop.py", "msgspec.py", "httptools.py"):
        (tmp_path / name).write_text("raise RuntimeError('the file of the user was imported')")
    source = (
        "import sys; sys.path.remove('')\n"
        "from pytriton.triton import Triton, TritonConfig\n"
        f"with Triton(config=TritonConfig(**{ports!r})) as triton: print(triton.is_alive())\n"
    )

    result = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env={**os.environ, "PYTRITON_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.stdout == "True\n", result.stderr


def test_given_workspace_is_made_and_removed(ports, tmp_path):
    workspace = tmp_path / "workspace"
    triton = Triton(config=TritonConfig(**ports), workspace=workspace)
    assert workspace.is_dir()
    with pytest.raises(FileExistsError):
        Triton(workspace=workspace)
    triton.run()
    triton.stop()

    assert not pathlib.Path(workspace).exists()
