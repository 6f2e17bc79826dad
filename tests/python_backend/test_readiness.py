# SPDX-License-Identifier: Apache-2.0
"""`is_ready`: asked on a thread of its own, also while `execute` runs."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from pytriton.runtime.transport.frames import (
    Cancel,
    CheckReady,
    Finalize,
    ReadyReport,
    WorkerLogLine,
)

X = np.array([[1.0]], np.float32)


def model(is_ready):
    lines = "\n".join(f"    {line}" for line in is_ready.strip().splitlines())
    return f"""
class TritonPythonModel:
    def initialize(self, args):
        self.calls = 0
        self.proceed = threading.Event()

{lines}

    def execute(self, requests):
        self.proceed.set()
        if requests[0].request_id() == "long":
            while not requests[0].is_cancelled():
                time.sleep(0.001)
        return [pb_utils.InferenceResponse([])]
"""


def check(rig, call=1):
    rig.say(CheckReady(call))
    report = rig.hear(ReadyReport).frame
    assert report.call == call
    return report.is_ready


def test_model_that_has_no_say_is_ready(start_worker):
    rig = start_worker(model("pass"))
    assert not rig.initialized().has_ready_check
    assert check(rig)


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_model_says_whether_it_is_ready(start_worker, kind, is_ready):
    rig = start_worker(model(f"{kind} is_ready(self): return {is_ready}"))
    assert rig.initialized().has_ready_check
    assert check(rig) is is_ready
    assert check(rig, 2) is is_ready


@pytest.mark.parametrize(
    "body, text",
    [
        ("return 1", "is_ready() must return a boolean value, got 1"),
        ("raise ValueError('no')", "ValueError: no"),
    ],
)
def test_model_that_cannot_say_is_not_ready(worker, body, text):
    rig = worker(model(f"def is_ready(self): {body}"))
    assert not check(rig)
    assert text in rig.log()


def test_check_is_answered_while_execute_runs(worker):
    rig = worker(model("def is_ready(self): return True"))
    batch = rig.execute({"x": X}, ids={0: "long"})
    assert check(rig)
    rig.say(Cancel(batch, 0))
    assert rig.answers(batch, 1) == [{}]
    assert rig.run({"x": X}) == [{}]
    assert check(rig, 2)


def test_checks_that_come_meanwhile_share_an_answer(worker):
    rig = worker(
        model(
            """
def is_ready(self):
    self.calls += 1
    self.proceed.wait()
    pb_utils.Logger.log_info(f"call {self.calls}")
    return True
"""
        )
    )
    for call in (1, 2, 3):
        rig.say(CheckReady(call))
    # The batch comes after the checks, so all of them wait by then.
    rig.execute({"x": X})
    reports = set()
    while len(reports) < 3:
        frame = rig.hear().frame
        if isinstance(frame, ReadyReport):
            assert frame.is_ready
            reports.add(frame.call)
    assert reports == {1, 2, 3}
    assert len(rig.lines) <= 2


def test_batches_go_on_after_a_check_in_a_long_one(worker):
    rig = worker(model("def is_ready(self): return True"))
    for number in range(3):
        batch = rig.execute({"x": X}, ids={0: "long"})
        assert check(rig, number + 1)
        rig.say(Cancel(batch, 0))
        assert rig.answers(batch, 1) == [{}]
        for _ in range(20):
            assert rig.run({"x": X}) == [{}]


def test_check_that_the_end_of_the_model_cancels_is_no_error(worker):
    rig = worker(
        model(
            """
async def is_ready(self):
    pb_utils.Logger.log_info("it is asked")
    try:
        await self.calls_nobody()
    finally:
        threading.Timer(0.1, self.proceed.set).start()  # so that there is time to log something

async def calls_nobody(self):
    await asyncio.Event().wait()

def finalize(self):
    self.proceed.wait()
"""
        )
    )
    rig.say(CheckReady(1))
    assert rig.hear(WorkerLogLine).frame.message == "it is asked"
    rig.say(Finalize())
    rig.is_over = True
    heard = []
    with contextlib.suppress(EOFError):
        while True:
            heard.append(rig.hear(WorkerLogLine, ReadyReport).frame)
    rig.zygote.wait(rig.pid)

    assert [line.message for line in heard if isinstance(line, WorkerLogLine)] == []
