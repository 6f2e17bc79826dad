# SPDX-License-Identifier: Apache-2.0
"""`pytriton perf` with tensors in GPU memory, and a library that stands for CUDA's driver."""

from __future__ import annotations

import os
import subprocess
import sys
from ctypes.util import find_library

import pytest

from tests.cuda import gpu_server
from tests.cuda.fake_library import environment, library_folder, needs_compiler
from tests.cuda.test_cuda_regions_e2e import DEVICE, ON_DEVICE
from tests.e2e.http_client import call
from tests.repository_e2e.model_files import code, config, model
from tests.repository_e2e.server_process import starter

pytestmark = [needs_compiler, pytest.mark.e2e]
REPOSITORY = {
    "plain": model(code("y = x + 1")),
    "device": model(DEVICE, config(ON_DEVICE)),
}
SHARED = ["--shared-memory", "cuda", "--shape", "X:2000", "--output-shared-memory-size", "8000"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    settings = {
        "flags": ["--allow-client-shm=true"],
        "environment": {"LD_LIBRARY_PATH": str(library_folder()), "CUDA_VISIBLE_DEVICES": "0"},
        "command": (sys.executable, gpu_server.__file__),
    }
    with starter(tmp_path_factory.mktemp("servers")) as start:
        yield start(REPOSITORY, **settings).await_ready()


def perf(server, name, *arguments, protocol="http", **more):
    port = server.grpc_port if protocol == "grpc" else server.http_port
    words = ["-m", name, "-u", f"127.0.0.1:{port}", "-i", protocol, *arguments]
    words += ["--request-count", "40", "--no-progress"]
    return subprocess.run(
        [sys.executable, "-m", "pytriton", "perf", *words],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("name", ["plain", "device"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tensors_may_be_in_gpu_memory_and_are_gone_afterwards(server, protocol, name, tmp_path):
    report = tmp_path / "report"
    found = perf(server, name, *SHARED, protocol=protocol, FAKE_CUDA_REPORT=str(report))

    assert found.returncode == 0, found.stderr
    assert "    Inference count: 40\n" in found.stdout
    assert call(server.http_port, "/v2/cudasharedmemory/status").body == b"[]"
    assert report.read_text() == "0 of 2\n"


def test_output_that_is_larger_than_its_region_fails(server):
    found = perf(server, "plain", *SHARED[:-1], "7999")

    assert "should be at least 8000 bytes to hold the results" in found.stdout + found.stderr


def test_machine_without_a_gpu_says_so(server):
    found = perf(server, "plain", *SHARED, FAKE_CUDA_DEVICES="0")

    assert found.returncode != 0
    assert "CUDA shared memory needs a GPU on this machine: CUDA's driver failed" in found.stderr


@pytest.mark.skipif(find_library("cuda") is not None, reason="this machine has a driver")
def test_machine_without_a_driver_says_so(server):
    found = perf(server, "plain", *SHARED, LD_LIBRARY_PATH=os.devnull)

    assert found.returncode != 0
    assert "CUDA shared memory needs a GPU on this machine: libcuda.so.1" in found.stderr
