# SPDX-License-Identifier: Apache-2.0
"""A forked child of a process that serves models: it must not speak for its parent."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.e2e.waiting import DEADLINE_S

# The channel's two ends are in one process, and one of them keeps an array on a block of the other.
PREPARE = """
import os, socket, sys
import numpy as np
from pytriton.base.dtypes import FP32
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.frames import Execute, TensorRef
from pytriton.runtime.transport.link import socket_pair, stream_pair

lender, keeper = (MemoryChannel(sock, Arena()) for sock in socket_pair())
array = np.ones(100_000, np.float32)
payload = lender.payload()
block, offset = payload.add([memoryview(array).cast("B")], array.nbytes)
ref = TensorRef("x", FP32.number, array.shape, offset, array.nbytes, block)
lender.send(Execute(1, [1], [ref]), payload)
received = keeper.receive()
kept = received.array(ref)
del received
keeper.releases_at_once = True

def in_child(action):
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def run(script: str) -> str:
    source = PREPARE + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("portable", ["0", "1"])
def test_array_that_a_child_drops_stays_its_parents(portable, monkeypatch):
    monkeypatch.setenv("PYTRITON_PORTABLE_CHANNEL", portable)
    said = run(
        """
        def drop():
            global kept
            del kept

        print(in_child(drop))
        print(lender.receive(socket.MSG_DONTWAIT))
        del kept
        print(lender.receive() is not None)
        """
    )

    assert said.split() == ["0", "None", "True"]


def test_child_cannot_send_on_its_parents_channel():
    said = run(
        """
        from pytriton.runtime.transport.frames import Cancel
        print(in_child(lambda: keeper.send(Cancel(1, 0))))
        print(lender.receive(socket.MSG_DONTWAIT))
        """
    )

    assert said.split() == ["OSError", "[Errno", "9]", "Bad", "file", "descriptor", "1", "None"]


def test_child_keeps_no_connection_of_its_parent_open():
    said = run(
        """
        ours, theirs = stream_pair()
        unused = socket_pair()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(reader, 1)
            os._exit(0)
        ours.close()
        unused[0].close()
        print(theirs.recv(1), unused[1].recv(1))
        os.write(writer, b"x")
        os.waitpid(child, 0)
        """
    )

    assert said.split() == ["b''", "b''"]
