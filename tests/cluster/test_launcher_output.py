# SPDX-License-Identifier: Apache-2.0
"""What the launcher process prints is in the server's log, with a name."""

from __future__ import annotations

import asyncio
import os

import pytest

from pytriton.runtime.cluster.executor import LINE_BYTES, log_line
from pytriton.runtime.executor.python_process import start_zygote
from pytriton.runtime.transport.lines import LinePipe
from tests.cluster.test_starter import until


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield os.fdopen(reading, "rb", buffering=0), writing
    os.close(writing)


def test_lines_are_logged_as_they_come(pipe, caplog):
    stream, writing = pipe

    async def case():
        output = LinePipe(stream, asyncio.get_running_loop(), log_line, LINE_BYTES)
        output.start()
        os.write(writing, b"\x1b[33mfirst\x1b[39m\n\nsec")
        await until(lambda: caplog.messages)
        os.write(writing, b"ond\r\nthi")
        await until(lambda: len(caplog.messages) == 2)
        output.close()
        output.close()

    asyncio.run(case())

    assert caplog.messages == ["ray: first", "ray: second", "ray: thi"]
    assert stream.closed


def test_line_without_an_end_is_logged_in_parts(pipe, caplog):
    stream, writing = pipe

    async def case():
        output = LinePipe(stream, asyncio.get_running_loop(), log_line, LINE_BYTES)
        output.start()
        os.write(writing, b"x" * 5000)
        output.close()

    asyncio.run(case())

    assert [len(message) for message in caplog.messages] == [5 + 4096, 5 + 904]


def test_output_of_a_process_is_taken_until_it_has_ended(caplog):
    async def case():
        started = start_zygote("this", takes_output=True)  # prints, and has no `main`
        output = LinePipe(started.output, asyncio.get_running_loop(), log_line, LINE_BYTES)
        output.start()
        await until(lambda: started.output.closed)
        started.socket.close()
        started.process.wait()

    asyncio.run(case())

    assert "ray: Beautiful is better than ugly." in caplog.messages
    assert caplog.messages[-1].startswith("ray: AttributeError: ")
