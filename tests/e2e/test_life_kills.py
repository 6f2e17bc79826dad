# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of the user's process, of the server or of both: nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from pytriton.runtime.transport.memory import PORTABLE_SETTING
from tests.e2e.load import ConstantLoad
from tests.e2e.scripts import SERVE, SERVE_AND_SAY
from tests.e2e.waiting import eventually


def victims(script, who):
    server = script.server_pids()
    assert len(server) == 1
    return {"user": [script.process.pid], "server": server}.get(who, [script.process.pid, *server])


# Twenty processes are killed in all, several side by side: one's end must not disturb another.
@pytest.mark.parametrize(
    "who, count, is_loaded",
    [
        ("user", 3, False),
        ("server", 3, False),
        ("both", 3, False),
        ("user", 4, True),
        ("server", 4, True),
        ("both", 3, True),
    ],
)
def test_kill_leaves_nothing_behind(start_script, who, count, is_loaded):
    scripts = [start_script(SERVE_AND_SAY, quiet=True) for _ in range(count)]
    for script in scripts:
        script.await_ready()
        assert script.say() is True
    with contextlib.ExitStack() as stack:
        loads = [
            stack.enter_context(ConstantLoad(script.http_port)) for script in scripts if is_loaded
        ]
        assert all(eventually(lambda load=load: len(load.statuses) > 50) for load in loads)
        assert [script.named_memory() for script in scripts] == [set()] * count
        for script in scripts:
            for pid in victims(script, who):
                os.kill(pid, signal.SIGKILL)

        left = [script.await_gone() for script in scripts]

    assert left == [{}] * count
    codes = {script.exit_code() for script in scripts}
    assert codes == ({0} if who == "server" else {-signal.SIGKILL})
    for load in loads:
        assert set(load.statuses) <= {200, 404, 500, 503}  # 404: its model is gone already


def meeting_place(script):
    """All that may stay: the name that others find the server by. The next one takes it over."""
    folder = script.temporary / f"pytriton-{os.getuid()}"
    return {str(folder), *(str(folder / f"{port}.sock") for port in script.ports.values())}


def test_kill_leaves_nothing_behind_where_memory_is_files(start_script):
    scripts = [
        start_script(SERVE, quiet=True, environment={PORTABLE_SETTING: "1"}) for _ in range(2)
    ]
    with contextlib.ExitStack() as stack:
        for script, who in zip(scripts, ("user", "both"), strict=True):
            load = stack.enter_context(ConstantLoad(script.await_ready().http_port))
            assert eventually(lambda load=load: len(load.statuses) > 50)
            assert script.named_memory() == set()
            for pid in victims(script, who):
                os.kill(pid, signal.SIGKILL)

        left = [script.await_gone(meeting_place(script)) for script in scripts]

    assert left == [{}, {}]


def test_other_server_goes_on_when_one_is_killed(start_script):
    killed, kept = [start_script(SERVE, quiet=True).await_ready() for _ in range(2)]
    with ConstantLoad(kept.http_port) as load:
        for pid in victims(killed, "both"):
            os.kill(pid, signal.SIGKILL)
        assert killed.await_gone() == {}
        seen = len(load.statuses)
        assert eventually(lambda: len(load.statuses) > seen + 50)

    assert set(load.statuses) == {200}
