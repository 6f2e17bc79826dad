# SPDX-License-Identifier: Apache-2.0
"""Signals to a serving script, scripts that just end, and children that it forked."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess

import numpy as np
import psutil
import pytest

from tests.e2e.http_client import infer, is_ready
from tests.e2e.load import ConstantLoad
from tests.e2e.scripts import GONE_WITHIN_S, SAY_WHEN_SERVING, SERVE, SERVE_AND_SAY
from tests.e2e.waiting import eventually

ONE = np.ones((1, 1), np.float32)


@pytest.mark.parametrize("is_loaded", [False, True], ids=["idle", "loaded"])
def test_interrupt_ends_a_script_with_code_zero(start_script, is_loaded):
    script = start_script(SERVE_AND_SAY)
    assert script.say() is True
    with ConstantLoad(script.http_port, clients=2 if is_loaded else 0) as load:
        assert eventually(lambda: not is_loaded or len(load.statuses) > 50)
        script.process.send_signal(signal.SIGINT)

        assert script.exit_code() == 0

    assert script.await_gone() == {}
    assert set(load.statuses) <= {200, 503}


def test_interrupt_of_the_whole_group_as_a_terminal_sends_it_ends_in_order(start_script):
    script = start_script(SERVE_AND_SAY, prefix=["setsid"])
    assert script.say() is True
    for process in script.family():
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end with one that came before
            process.send_signal(signal.SIGINT)

    assert script.exit_code() == 0
    assert script.await_gone() == {}


@pytest.mark.parametrize("is_loaded", [False, True], ids=["idle", "loaded"])
def test_termination_leaves_nothing_behind(start_script, is_loaded):
    script = start_script(SERVE).await_ready()
    with ConstantLoad(script.http_port, clients=2 if is_loaded else 0) as load:
        assert eventually(lambda: not is_loaded or len(load.statuses) > 50)
        script.process.send_signal(signal.SIGTERM)

        assert script.await_gone() == {}

    # No handler is installed behind the user's back, so the signal does what it does by default.
    assert script.exit_code() == -signal.SIGTERM


def test_termination_of_the_server_alone_ends_it_in_order(start_script):
    script = start_script(SERVE_AND_SAY)
    assert script.say() is True  # a server that ends before `serve` is started again there
    os.kill(script.server_pids()[0], signal.SIGTERM)

    assert script.exit_code() == 0
    assert script.await_gone() == {}


def test_script_in_the_background_of_a_shell_serves_and_ends(start_script):
    shell = ["sh", "-c", '"$@" 2>stderr & wait $!', "sh"]
    script = start_script(SERVE, prefix=shell).await_ready()
    told = script.home.parent / "stderr"
    assert eventually(lambda: "To end it: `kill " in told.read_text())
    # Such a shell starts its jobs with SIGINT ignored, and that is the user's choice.
    (job,) = [p for p in script.family() if "script.py" in " ".join(p.cmdline()[1:2])]
    job.send_signal(signal.SIGINT)
    assert infer(script.http_port, "Model", {"x": ONE})["y"] == ONE

    (advice,) = re.findall(r"To end it: `(kill \d+)`", told.read_text())
    subprocess.run(shlex.split(advice), check=True)

    assert script.await_gone() == {}


def test_script_that_just_ends_stops_its_server(start_script):
    script = start_script(
        """
        triton = Triton()
        triton.bind("Model", identity, [X], [Y])
        triton.run()
        print("true", flush=True)
        """
    )
    assert script.say() is True

    assert script.exit_code() == 0
    assert script.await_gone() == {}


def test_exit_without_cleaning_up_leaves_nothing_behind(start_script):
    script = start_script(
        """
        triton = Triton()
        triton.bind("Model", identity, [X], [Y])
        triton.run()
        os._exit(3)
        """
    )

    assert script.exit_code() == 3
    assert script.await_gone() == {}


FORKS = {
    "os.fork": """
        child = os.fork()
        if child == 0:
            print(os.getpid(), flush=True)
            signal.pause()
        """,
    "multiprocessing": """
        import multiprocessing
        def wait():
            print(os.getpid(), flush=True)
            signal.pause()
        multiprocessing.get_context("fork").Process(target=wait).start()
        """,
}


@pytest.mark.parametrize("how", FORKS)
def test_forked_child_does_not_keep_the_server_alive(start_script, how):
    source = (
        """
        triton = Triton()
        triton.bind("Model", identity, [X], [Y])
        triton.run()
        """
        + FORKS[how]
        + """
        triton.serve()
        """
    )
    script = start_script(source)
    child = psutil.Process(script.say())
    script.await_ready()
    assert script.server_pids()
    script.process.kill()

    assert eventually(lambda: not script.server_pids(), GONE_WITHIN_S)
    assert child.is_running()
    child.kill()
    assert script.await_gone() == {}


def test_forked_child_that_exits_leaves_the_server_running(start_script):
    script = start_script(
        SAY_WHEN_SERVING
        + """
triton = Triton()
triton.bind("Model", identity, [X], [Y])
triton.run()
child = os.fork()
if child == 0:
    sys.exit(0)  # runs what is registered to run at exit
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
threading.Thread(target=say_when_serving, daemon=True).start()
triton.serve()
"""
    )

    assert script.say() == 0
    assert script.say() is True
    assert is_ready(script.http_port)
    assert infer(script.http_port, "Model", {"x": ONE})["y"] == ONE
    script.process.send_signal(signal.SIGINT)
    assert script.exit_code() == 0
