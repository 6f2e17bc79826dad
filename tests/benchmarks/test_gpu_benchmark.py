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
def test_all_figures_are_measured_without_a_gpu(tmp_path):
    words = "--stand-in --mib 1 --seconds 0.05 --rounds 1 --lanes 2 --kills 12 --kill-seconds 600"
    options = [*words.split(), "--json", str(tmp_path / "f.json")]
    command = [sys.executable, "-m", "benchmarks.gpu", *options]
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    assert found.returncode == 0, found.stdout + found.stderr
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures["kills"] == 12
    assert figures["CUDA shared memory, 1 MiB, http, 1 tritonclient"] > 0
    assert figures["CUDA shared memory, 16 MiB, grpc, 1 connection of the generator"] > 0
    assert figures["identity through the GPU as a part of that on the host"] > 0
    assert figures["bytes over PCIe by our copies meanwhile"] > 0
    assert figures["small model on the GPU as a part of that on the host"] > 0
    for words in ("ensemble of three steps", "model that calls two"):
        assert figures[f"{words}, bytes over PCIe by our copies"] == 0
        assert figures[f"{words}, tensors that were shared"] > 0
        assert figures[f"{words}, tensors that were copied"] == 0
    assert "reached  ensemble of three steps, bytes over PCIe by our copies" in found.stdout


@needs_compiler
@pytest.mark.e2e
def test_kills_end_in_time():
    words = "--stand-in --only kills --lanes 1 --kills 1000 --kill-seconds 0"
    command = [sys.executable, "-m", "benchmarks.gpu", *words.split()]
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.startswith("NVML is not used: ")
    assert "\nkills                      " in found.stdout


@needs_compiler
@pytest.mark.e2e
@pytest.mark.parametrize("front_ends", [0, 2])
def test_profile_follows_requests_through_all_processes(front_ends):
    words = f"--stand-in --kib 4 --seconds 0.5 --front-ends {front_ends}"
    command = [sys.executable, "-m", "benchmarks.gpu_profile", *words.split()]
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    assert found.returncode == 0, found.stdout + found.stderr
    stations = ["front: HTTP read", "core: send batch", "driver: copy on device", "client: request"]
    assert all(f"  {each}" in found.stdout for each in stations), found.stdout
    assert ("front: send to core" in found.stdout) == (front_ends > 0)


@needs_compiler
@pytest.mark.e2e
def test_profile_counts_calls_of_each_process():
    words = "--stand-in --kib 4 --calls --lines 3 --front-ends 2"
    command = [sys.executable, "-m", "benchmarks.gpu_profile", *words.split()]
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("calls for a request") == 3
