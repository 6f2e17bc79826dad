# SPDX-License-Identifier: Apache-2.0
"""The standard error of a worker, which its server reads."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from pytriton.runtime.executor import call_server
from pytriton.runtime.executor.call_server import ReturnedErrors


class Services:
    def __init__(self):
        self.lines = []

    def log(self, line):
        self.lines.append((line.message, line.model, line.is_printed))


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def services():
    return Services()


@pytest.fixture
def writer(loop, services):
    """The worker's end; `errors` is the server's."""
    reader, writer = os.pipe()
    errors = ReturnedErrors(reader, "crash", loop, services)
    errors.start()
    with os.fdopen(writer, "wb", buffering=0) as stream:
        stream.errors_object = errors
        yield stream
    errors.close()


def turn(loop):
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))


def test_lines_are_written_here_and_kept(loop, services, writer, capfd):
    writer.write(b"one\ntw")
    turn(loop)
    assert services.lines == [("one", "crash", True)]
    writer.write(b"o\n\n\xff\n")
    turn(loop)

    assert [text for text, _, _ in services.lines] == ["one", "two", "\ufffd"]
    assert capfd.readouterr().err.startswith("one\ntwo\n\n")


def test_last_words_of_a_worker_are_kept(loop, services, writer, capfd):
    writer.write(b"before\nthe en")
    writer.close()
    writer.errors_object.close()
    writer.errors_object.close()

    assert [text for text, _, _ in services.lines] == ["before", "the en"]
    assert capfd.readouterr().err == "before\nthe en"


def test_process_that_writes_on_does_not_keep_the_server(loop, services, writer, capfd):
    def write_on(line):
        assert len(services.lines) < 100, "it reads for ever"
        services.lines.append(line)
        writer.write(b"more\n")

    services.log = write_on
    writer.write(b"more\n")
    writer.errors_object.close()

    assert 0 < len(services.lines) < 100


def test_end_of_the_pipe_ends_the_reading(loop, services, writer, capfd):
    writer.write(b"all\n")
    turn(loop)
    writer.close()
    turn(loop)

    assert services.lines == [("all", "crash", True)]
    assert writer.errors_object._pipe._stream.closed


def test_line_without_an_end_is_kept_in_pieces(loop, services, writer, capfd):
    for _ in range(3):
        writer.write(b"x" * 60_000)
        turn(loop)

    assert services.lines
    assert len(writer.errors_object._pipe._cutter.end()) <= 1 << 16


def test_server_whose_own_standard_error_nobody_reads_does_not_wait(
    loop, services, writer, monkeypatch
):
    reader, full = os.pipe()
    monkeypatch.setattr(call_server, "_STDERR", full)
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, b"x" * 4096)
    os.set_blocking(full, True)
    writer.write(b"one\n")
    turn(loop)
    os.set_blocking(reader, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(reader, 1 << 16):
            pass
    writer.write(b"two\n")
    turn(loop)

    assert os.read(reader, 1 << 16) == b"(4 bytes were lost here)\ntwo\n"
    assert [text for text, _, _ in services.lines] == ["one", "two"]
    os.close(reader)
    os.close(full)
