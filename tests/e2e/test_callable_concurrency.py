# SPDX-License-Identifier: Apache-2.0
"""Callables that wait, hang, hold the GIL or run side by side, and what goes on meanwhile."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.e2e import http_client
from tests.e2e.http_client import call
from tests.e2e.scripts import SERVE
from tests.e2e.waiting import DEADLINE_S

ONE = np.ones((1, 1), np.float32)


def test_model_that_hangs_holds_up_nothing_else(host):
    entered, released = threading.Event(), threading.Event()

    def hang(requests):
        entered.set()
        released.wait(DEADLINE_S)
        return [{"y": request["x"]} for request in requests]

    stuck = host.bind(hang)
    other = host.bind(lambda requests: [{"y": request["x"] * 2} for request in requests])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(host.infer, stuck, x=ONE)
        try:
            assert entered.wait(DEADLINE_S)
            assert host.infer(other, x=ONE)["y"] == 2
            for path in ("/v2/health/live", "/v2/health/ready", f"/v2/models/{stuck}/ready"):
                assert host.get(path).status == 200
            assert host.get(f"/v2/models/{stuck}").json["name"] == stuck
            assert host.statistics(stuck)["inference_count"] == 0
            assert host.metric("nv_inference_request_success", other) == 1
            assert not waiting.done()
        finally:
            released.set()

        assert waiting.result()["y"] == 1


# Each holds it until there is a byte in the pipe.
GIL_HOLDERS = {
    "a C function": """
def hold():
    ctypes.PyDLL(None).read(gate, ctypes.create_string_buffer(1), 1)
""",
    "a regular expression": """
def hold():
    while not select.select([gate], [], [], 0)[0]:
        re.match("(a+)+$", "a" * 22 + "b")
""",
}


@pytest.mark.parametrize("how", GIL_HOLDERS)
def test_server_answers_while_a_callable_holds_the_gil(start_script, tmp_path, how):
    if how == "a C function" and not hasattr(ctypes.PyDLL(None), "read"):
        pytest.skip("this C library has no read")
    os.mkfifo(tmp_path / "gate")
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    script = start_script(
        f"import ctypes, re, select\ngate = os.open({str(tmp_path / 'gate')!r}, os.O_RDWR)\n"
        + GIL_HOLDERS[how]
        + """
def function(requests):
    os.write(1, b'"holding"\\n')
    hold()
    os.write(1, b'"released"\\n')
    return identity(requests)

with Triton() as triton:
    triton.bind("Model", function, [X], [Y])
    triton.serve()
"""
    ).await_ready()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http_client.infer, script.http_port, "Model", {"x": ONE})
        assert script.say() == "holding"
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/Model/ready", "/v2",
                     "/v2/models/Model", "/v2/models/Model/config"):  # fmt: skip
            assert call(script.http_port, path).status == 200
        assert b"nv_inference_count" in call(script.ports["metrics_port"], "/metrics").body

        # All of this happened while nothing of the user's process could run.
        assert not waiting.done()
        os.write(gate, b"x")
        os.close(gate)
        assert script.say() == "released"
        assert waiting.result()["y"] == 1


def test_server_outlasts_a_stop_of_the_users_process(start_script):
    # A process that is stopped altogether is the worst holder of a GIL.
    script = start_script(SERVE).await_ready()
    script.process.send_signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(http_client.infer, script.http_port, "Model", {"x": ONE})
            assert call(script.http_port, "/v2/health/ready").status == 200
            assert b"nv_inference_count" in call(script.ports["metrics_port"], "/metrics").body
            assert not waiting.done()
            script.process.send_signal(signal.SIGCONT)
            assert waiting.result()["y"] == 1
    finally:
        script.process.send_signal(signal.SIGCONT)
