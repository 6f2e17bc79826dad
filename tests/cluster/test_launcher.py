# SPDX-License-Identifier: Apache-2.0
"""The launcher process, with something else in the place of Ray."""

from __future__ import annotations

import asyncio
import sys
import types

import pytest

from pytriton.runtime.cluster import launcher
from pytriton.runtime.cluster.messages import TO_SERVER, Beat, Connect, ConnectFailed, LauncherLink
from pytriton.runtime.transport.link import stream_pair


def broken(_on_stuck):
    raise KeyError("unforeseen")


@pytest.mark.parametrize(
    "ray, reason",
    [
        (None, "the package ray cannot be imported: "),
        (types.SimpleNamespace(RayCluster=broken), "KeyError: 'unforeseen'"),
    ],
    ids=["cannot be imported", "fails"],
)
def test_whatever_is_wrong_with_ray_is_told_to_the_server(ray, reason, monkeypatch):
    monkeypatch.setitem(sys.modules, launcher._RAY, ray)
    monkeypatch.setattr(launcher.threading, "Timer", lambda *_: types.SimpleNamespace(start=print))

    async def case():
        loop = asyncio.get_running_loop()
        ours, theirs = stream_pair()
        told = asyncio.Queue()
        link = LauncherLink(ours, loop, TO_SERVER, told.put_nowait, print)
        link.start()
        link.send(Connect("", "pytriton-1", "", "1"))
        await asyncio.wait_for(launcher.LauncherProcess(theirs, loop).run(), 60)
        while isinstance(answer := await asyncio.wait_for(told.get(), 60), Beat):
            pass
        link.close()
        theirs.close()
        return answer

    answer = asyncio.run(case())

    assert isinstance(answer, ConnectFailed)
    assert answer.reason.startswith(reason)
