# SPDX-License-Identifier: Apache-2.0
"""Costs on the metrics page are those of the processes that caused them."""

from __future__ import annotations

import re
import time

import pytest

from tests.e2e.http_client import call
from tests.repository_e2e.model_files import code, config, model
from tests.trace_files import await_requests

BUSY = """
until_ns = time.process_time_ns() + 3_000_000
while time.process_time_ns() < until_ns: pass
y = x
"""
REQUESTS = 150


def processor_ns(pid: int) -> int:
    """The processor time of another process, as clock_getcpuclockid(3) names its clock."""
    return time.clock_gettime_ns((~pid << 3) | 2)


@pytest.fixture
def server(start_server, tmp_path):
    models = {
        "busy": model(code(BUSY), config("", max_batch_size=8)),
        "quick": model(settings=config("", max_batch_size=8)),
    }
    flags = [f"--trace-config=triton,file={tmp_path}/trace.json", "--trace-config=rate=1"]
    flags += ["--trace-config=level=TIMESTAMPS", "--frontend-processes=0"]
    return start_server(models, flags=flags).await_ports()


def seconds(server, family):
    """The values of a family of processor times, by their labels."""
    page = call(server.metrics_port, "/metrics").body.decode()
    found = re.findall(rf"^{family}{{(.*)}} (\S+)$", page, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def of(found, *parts):
    return sum(value for labels, value in found.items() if all(part in labels for part in parts))


def test_costs_add_up_to_the_time_of_processes(server, tmp_path):
    (busy,) = [each.pid for each in server.workers() if "busy" in " ".join(each.cmdline())]

    def ask(count):
        for _ in range(count):
            server.infer("busy", 1.0)
            server.infer("quick", 1.0)

    ask(3)
    before, worker_before = seconds(server, "nv_inference_processor_seconds"), processor_ns(busy)
    whole_before, server_before = (
        seconds(server, "nv_server_processor_seconds"),
        processor_ns(server.pid),
    )
    ask(REQUESTS)
    after, worker_after = seconds(server, "nv_inference_processor_seconds"), processor_ns(busy)
    whole_after, server_after = (
        seconds(server, "nv_server_processor_seconds"),
        processor_ns(server.pid),
    )

    def rise(*parts):
        return of(after, *parts) - of(before, *parts)

    worker_s = (worker_after - worker_before) / 1e9
    assert worker_s >= REQUESTS * 0.003
    assert rise('model="busy"', 'where="worker"') == pytest.approx(worker_s, rel=0.02)
    server_s = (server_after - server_before) / 1e9
    assert rise('where="server"') == pytest.approx(server_s, rel=0.02)
    assert of(whole_after) - of(whole_before) == pytest.approx(server_s, rel=0.02)
    traced = [each.model for each in await_requests(tmp_path, 2 * REQUESTS + 6)]
    costs = [each["cost"] for each in traced if each["model_name"] == "busy"][3:]
    assert all(cost["worker_ns"] >= 3_000_000 for cost in costs)
    assert sum(cost["worker_ns"] for cost in costs) / 1e9 == pytest.approx(worker_s, rel=0.02)
    assert all((cost["bytes_in"], cost["bytes_out"]) == (4, 4) for cost in costs)
