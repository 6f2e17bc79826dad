# SPDX-License-Identifier: Apache-2.0
"""The thread of `pytriton top` that reads a server."""

from __future__ import annotations

from pytriton.tools.commands.top.source import ReadingThread
from tests.e2e.waiting import DEADLINE_S


class OddServer:
    def read(self):
        raise KeyError("model")


def test_answer_that_is_not_understood_is_shown():
    reader = ReadingThread(OddServer(), 60.0)
    reader.start()
    reading = reader.readings.get(timeout=DEADLINE_S)
    reader.stop()

    assert reading.problem == "The server's answer cannot be understood: KeyError('model')"
