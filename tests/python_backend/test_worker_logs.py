# SPDX-License-Identifier: Apache-2.0
"""The lines of a worker: which ones are sent, and for which requests."""

from __future__ import annotations

import numpy as np

from pytriton.base.log_switches import LogSwitches
from pytriton.runtime.transport.frames import LogChange, WorkerLogLine
from tests.python_backend.worker_rig import connect_forked

X = np.ones((1, 2), np.float32)
TALK = """
class TritonPythonModel:
    def execute(self, requests):
        logger = pb_utils.Logger
        for level in (logger.VERBOSE, logger.INFO, logger.WARNING, logger.ERROR):
            logger.log(level.name, level)
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
FAILS = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("no")
"""
LATER = """
import asyncio

class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(0)
        pb_utils.Logger.log_info("awaited")
        await asyncio.to_thread(pb_utils.Logger.log_info, "in a thread")
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
FORKS = """
import os

class TritonPythonModel:
    def execute(self, requests):
        if os.fork() == 0:
            pb_utils.Logger.log_verbose("forked")
            os._exit(0)
        os.wait()
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def heard(rig, **fields):
    rig.lines.clear()
    rig.run({"x": X}, {"x": X}, **fields)
    return [(line.message, line.request_ids) for line in rig.lines]


def test_worker_sends_what_the_log_wants(worker):
    rig = worker(TALK, log=LogSwitches(info=False, verbose=1))
    at_first = heard(rig)
    rig.say(LogChange(LogSwitches(warning=False, error=False)))
    changed = heard(rig)

    assert [text for text, _ in at_first] == ["VERBOSE", "WARNING", "ERROR"]
    assert [text for text, _ in changed] == ["INFO"]


def test_lines_have_the_ids_of_their_batch_only(worker):
    rig = worker(TALK, log=LogSwitches(warning=False, error=False))

    assert heard(rig, ids={0: "a", 1: "b"}) == [("INFO", ["a", "b"])]
    assert heard(rig, ids={1: "c\n"}) == [("INFO", ["c\n"])]
    assert heard(rig) == [("INFO", [])]


def test_failure_has_the_ids_of_its_batch(worker):
    rig = worker(FAILS)
    ((text, ids),) = heard(rig, ids={0: "a"})

    assert "ValueError: no" in text
    assert ids == ["a"]
    assert heard(worker(FAILS, log=LogSwitches(error=False))) == []


def test_lines_of_coroutines_and_their_threads_have_the_ids(worker):
    rig = worker(LATER)

    assert heard(rig, ids={0: "a"}) == [("awaited", ["a"]), ("in a thread", ["a"])]
    assert heard(rig) == [("awaited", []), ("in a thread", [])]


def test_forked_process_sends_everything_because_it_hears_of_no_change(worker):
    rig = worker(FORKS, log=LogSwitches(verbose=0))
    batch = rig.execute({"x": X}, ids={0: "a"})
    forked = connect_forked(rig.fork_socket)
    line = forked.hear(WorkerLogLine).frame
    rig.answers(batch, 1)
    forked.close()

    assert (line.message, line.request_ids) == ("forked", ["a"])
