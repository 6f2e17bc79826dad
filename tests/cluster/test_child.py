# SPDX-License-Identifier: Apache-2.0
"""The process that an actor starts: how its end is told, and what ends with it."""

from __future__ import annotations

import os
import queue
import sys

import pytest

from pytriton.runtime.cluster.child import InstanceProcess
from tests.e2e.waiting import DEADLINE_S


class Ends:
    """Where a child tells its end."""

    def __init__(self):
        self._reasons = queue.Queue()

    def __call__(self, reason):
        self._reasons.put(reason)

    def reason(self):
        return self._reasons.get(timeout=DEADLINE_S)


def python(source, on_end, **variables):
    return InstanceProcess([sys.executable, "-c", source], variables, on_end)


def test_child_tells_its_exit_code_and_its_last_lines(capfd):
    ended = Ends()
    source = "import os, sys; print(os.environ['WHO'], flush=True); sys.exit('no such model')"

    pid = python(source, ended, WHO="me").start()
    reason = ended.reason()

    assert pid != os.getpid()
    assert reason == "exited with code 1, after it had written:\nme\nno such model"
    assert capfd.readouterr().err.splitlines() == ["me", "no such model"]


def test_child_keeps_few_lines_of_many(capfd):
    ended = Ends()

    python("[print(i) for i in range(5000)]", ended).start()

    assert ended.reason().splitlines()[1:] == [str(i) for i in range(4980, 5000)]


@pytest.mark.parametrize("lines, waits", [([9, 1, 0, 7], 3), ([0, 7], 1), ([1] * 99, 30)])
def test_last_lines_are_waited_for_while_they_come_and_not_for_ever(lines, waits):
    child = InstanceProcess([], {}, Ends())
    read = []

    class SlowReader:
        def join(self, _seconds):
            read.append(lines[len(read)])
            child._line_count += read[-1]

    child._await_last_lines(SlowReader())

    assert read == lines[:waits]


def test_killed_child_ends_with_what_it_has_started(tmp_path):
    ended = Ends()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    grandchild = (
        f"f = open({str(pipe)!r}, 'w', 1); f.write('here\\n'); import time; time.sleep(600)"
    )
    child = python(
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])", ended
    )

    child.start()
    with pipe.open() as lines:
        is_started = lines.readline() == "here\n"
        child.kill()
        rest = lines.read()  # until nobody can write any more

    assert is_started
    assert rest == ""
    assert ended.reason() == "killed by SIGKILL (9)"


def test_child_that_cannot_be_started_says_why():
    with pytest.raises(FileNotFoundError):
        InstanceProcess(["/no/such/python"], {}, Ends()).start()
