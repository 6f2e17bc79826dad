# SPDX-License-Identifier: Apache-2.0
"""Small requests of client libraries take the fast path, as these send them without being told."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import urllib.request

import pytest

from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.triton import Triton, TritonConfig
from tests.e2e import client_drivers
from tests.e2e.client_drivers import REQUESTS
from tests.e2e.conftest import new_ports
from tests.e2e.hosts import Host

# Those of one form that are read in the ordinary way until the form is known, on each front end.
LEARNED_FROM = 40
FAST = ("columns", "alone")
OPTIONS = {
    "default": {},
    "outputs": {"names_outputs": True},
    "id": {"request_id": "", "names_outputs": True},
    "parameters": {"parameters": {"user": "somebody", "temperature": 7}},
    "priority": {"priority": 1, "timeout": 60_000_000},
    "headers": {"headers": {"authorization": "Bearer abc"}, "names_outputs": True},
}
OPTIONS["everything"] = {name: value for each in OPTIONS.values() for name, value in each.items()}
# What is sent is the same for all clients of a protocol, but for a few headers.
OFTEN_SENT = ("default", "id")


def cases():
    for scheme, drivers in client_drivers.OFFICIAL.items():
        options = dict(OPTIONS)
        if scheme == "grpc":
            options["deadline"] = {"client_timeout": 60.0}
        for driver in drivers:
            is_asyncio = driver.__name__.endswith("asyncio")
            for name in options if is_asyncio else OFTEN_SENT:
                yield pytest.param(driver, scheme, options[name], id=f"{driver.__name__}-{name}")


PERF_ANALYZER = os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer")


@batch
def plus_one(x):
    return {"y": x + 1}


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "front ends"])
def running_host(request):
    ports = new_ports()
    config = TritonConfig(**ports, frontend_processes=request.param)
    with Triton(config=config) as triton:
        yield Host(triton, ports)


@pytest.fixture
def model(host):
    number = Tensor(name="x", dtype="float32", shape=(1,))
    return host.bind(plus_one, [number], [Tensor(name="y", dtype="float32", shape=(1,))])


def paths(host: Host, model: str) -> dict[str, int]:
    """How many requests came to a model in each way."""
    url = f"http://127.0.0.1:{host.metrics_port}/metrics"
    with urllib.request.urlopen(url) as answer:
        metrics = answer.read().decode()
    pattern = rf'^nv_inference_path_count{{model="{model}",path="(\w+)",.*}} (\d+)$'
    return {name: int(count) for name, count in re.findall(pattern, metrics, re.MULTILINE)}


def check_fast(host: Host, model: str, requests: int) -> None:
    found = paths(host, model)

    assert sum(found.values()) == requests, found
    assert sum(found.get(name, 0) for name in FAST) >= requests - LEARNED_FROM, found
    assert {name for name, count in found.items() if count} <= {*FAST, "new"}, found


def address(host: Host, scheme: str) -> str:
    return f"127.0.0.1:{host.port if scheme == 'http' else host.grpc_port}"


@pytest.mark.parametrize("driver, scheme, options", list(cases()))
def test_official_clients_take_the_fast_path(host, model, driver, scheme, options):
    driver(address(host, scheme), model, options)

    check_fast(host, model, REQUESTS)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
@pytest.mark.parametrize("driver", client_drivers.OURS)
def test_our_clients_take_the_fast_path(host, model, driver, scheme):
    driver(f"{scheme}://{address(host, scheme)}", model, {})

    check_fast(host, model, REQUESTS)


@pytest.mark.skipif(PERF_ANALYZER is None, reason="perf_analyzer is not installed")
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_perf_analyzer_takes_the_fast_path(host, model, scheme):
    ((name, token),) = host.token.items()
    header = name if scheme == "http" else f"triton-grpc-protocol-{name}"
    command = [PERF_ANALYZER, "-m", model, "-i", scheme, "-u", address(host, scheme), "-r", "1"]
    command += ["--concurrency-range=16", "-p", "1000", "-s", "1000", "-H", f"{header}:{token}"]

    # It does not find its short measurement stable, and says so by its exit code.
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    found = paths(host, model)
    assert sum(found.values()) > REQUESTS
    check_fast(host, model, sum(found.values()))
