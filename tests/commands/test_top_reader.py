# SPDX-License-Identifier: Apache-2.0
"""The thread of `pytriton top` that reads a server."""

from __future__ import annotations

from pytriton.tools.commands.top.source import ReadingThread


class OddServer:
    def read(self):
        raise KeyError("model")


def test_answer_that_is_not_understood_is_shown():
    reader = ReadingThread(OddServer(), 60.0)
    reader.start()
    reading = reader.readings.get(timeout=30)
    reader.stop()

    assert reading.problem == "The server's answer cannot be understood: KeyError('model')"
