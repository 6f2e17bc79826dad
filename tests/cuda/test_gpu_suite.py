# SPDX-License-Identifier: Apache-2.0
"""The tests that need a GPU, as far as a machine without one can tell."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tests.repository_e2e.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "gpu").glob("*.py"))
PROGRAM = """
import importlib, sys
sys.modules["opentelemetry"] = None  # as if it were not installed
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_tests_on_gpus_need_no_packages_of_traces():
    names = [f"tests.gpu.{file.stem}" for file in FILES]
    command = [sys.executable, "-c", PROGRAM, *names, "benchmarks.gpu"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert FILES
    assert found.returncode == 0, found.stderr


def test_servers_of_tests_find_packages_as_the_tests_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/packages")
    command = [sys.executable, "-c", "import sys; print(sys.path)"]
    with ServerProcess(tmp_path, [tmp_path], command=command) as server:
        assert server.exit_code() == 0
        path = ast.literal_eval(server.stdout)

    assert path.index(str(ROOT)) < path.index("/packages")
