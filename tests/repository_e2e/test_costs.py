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


def seconds(page, what):
    """The values of a family of processor times, by their labels."""
    found = re.findall(rf"^nv_{what}_processor_seconds{{(.*)}} (\S+)$", page, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def of(found, *parts):
    return sum(value for labels, value in found.items() if all(part in labels for part in parts))


def look(server, pids):
    """Both families, with the processor times of processes before and after they were read."""
    before = [processor_ns(pid) / 1e9 for pid in pids]
    page = call(server.metrics_port, "/metrics").body.decode()
    after = [processor_ns(pid) / 1e9 for pid in pids]
    return before, [seconds(page, what) for what in ("inference", "server")], after


def test_costs_add_up_to_the_time_of_processes(server, tmp_path):
    (busy,) = [each.pid for each in server.workers() if "busy" in " ".join(each.cmdline())]

    def ask(count):
        for _ in range(count):
            server.infer("busy", 1.0)
            server.infer("quick", 1.0)

    ask(3)
    look(server, [])  # the first page takes much longer than those to come
    last_began = processor_ns(busy) / 1e9
    ask(1)  # its answer says what the worker has used until then
    first_before, (first, first_whole), first_after = look(server, [busy, server.pid])
    ask(REQUESTS - 1)
    other_last_began = processor_ns(busy) / 1e9
    ask(1)
    then_before, (then, then_whole), then_after = look(server, [busy, server.pid])

    def rise(*parts):
        return of(then, *parts) - of(first, *parts)

    # What the page says has been read between two looks at the clocks: no tolerance is needed.
    worker_s = rise('model="busy"', 'where="worker"')
    assert other_last_began - first_before[0] <= worker_s <= then_before[0] - last_began
    assert worker_s >= REQUESTS * 0.003
    for server_s in (rise('where="server"'), of(then_whole) - of(first_whole)):
        assert then_before[1] - first_after[1] <= server_s <= then_after[1] - first_before[1]
    traced = [each.model for each in await_requests(tmp_path, 2 * REQUESTS + 8)]
    costs = [each["cost"] for each in traced if each["model_name"] == "busy"][4:]
    assert all(cost["worker_ns"] >= 3_000_000 for cost in costs)
    assert sum(cost["worker_ns"] for cost in costs) == pytest.approx(worker_s * 1e9, abs=1e3)
    assert all((cost["bytes_in"], cost["bytes_out"]) == (4, 4) for cost in costs)
