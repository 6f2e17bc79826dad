# SPDX-License-Identifier: Apache-2.0
"""The figures of GPUs, with the library that stands for CUDA's driver."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cuda.fake_library import needs_compiler


@needs_compiler
@pytest.mark.e2e
def test_regions_and_kills_are_measured_without_a_gpu(tmp_path):
    words = "--stand-in --only regions,kills --mib 1 --seconds 0.05 --kills 3 --json"
    command = [sys.executable, "-m", "benchmarks.gpu", *words.split(), str(tmp_path / "f.json")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    assert found.returncode == 0, found.stdout + found.stderr
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures["kills of workers, clients and regions"] == 3
    assert figures["CUDA shared memory, 1 MiB, http, 1 tritonclient"] > 0
    assert figures["CUDA shared memory, 16 MiB, grpc, 1 connection of the generator"] > 0
