# SPDX-License-Identifier: Apache-2.0
"""What the server's log says of instances in processes of other machines."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from pytriton.runtime.executor.call_server import CallServer
from pytriton.runtime.executor.remote.starter import LAST_OUTPUT
from pytriton.runtime.transport.frames import WorkerLogLine
from tests.executor.remote.remote_rig import run
from tests.executor.worker_rig import until


def test_log_says_where_an_instance_runs(caplog):
    caplog.set_level(logging.INFO)
    pids = []

    async def scenario(owner):
        instance = await owner.launch()
        pids.append(instance.pid)
        instance.stop()
        await instance.ended

    run(scenario, "tcp:")

    expected = (
        f"Instance 'm_0_0' is started on node 'node-a' (process {pids[0]}) and loads its model"
    )
    assert expected in caplog.messages


def test_lines_of_another_machine_name_the_instance_and_its_node():
    lines = []

    class Services:
        def log(self, line):
            lines.append((line.file, line.line))

    for origin in ("", "m_0_1@node-a"):
        server = CallServer(None, Services(), origin)
        for frame in (
            WorkerLogLine("INFO", "logged", "/models/m/1/model.py", 8),
            WorkerLogLine("INFO", "", "m_0_1", 0),
        ):
            server.handle(SimpleNamespace(frame=frame))

    assert lines == [
        ("/models/m/1/model.py", 8),
        ("m_0_1", 0),
        ("m_0_1@node-a model.py", 8),
        ("m_0_1@node-a", 0),
    ]


@pytest.mark.parametrize("action", ["crash", ""])
def test_last_output_of_a_crash_is_for_the_log_and_not_for_clients(action, caplog):
    async def scenario(owner):
        instance = await owner.launch()
        (process,) = owner.starter.processes
        process.last_output = f"{LAST_OUTPUT}a secret"
        if action:
            sink = owner.execute(instance, action=action)
            await until(lambda: sink.errors)
            assert "SIGSEGV" in sink.errors[0].message
            assert "secret" not in sink.errors[0].message
        else:
            instance.stop()
        await instance.ended

    run(scenario, "tcp:")

    said = [text for text in caplog.messages if "secret" in text]
    expected = "the last output of instance m_0_0 (killed by SIGSEGV (11)):\na secret"
    assert said == ([expected] if action else [])
