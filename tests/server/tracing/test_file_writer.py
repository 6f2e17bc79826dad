# SPDX-License-Identifier: Apache-2.0
"""Files of traces: they are whole documents, and what cannot be written stops nothing."""

from __future__ import annotations

import asyncio
import json
import os
import threading

import pytest

from pytriton.serving.server.tracing import trace_files
from pytriton.serving.server.tracing.trace_files import MainFile, TraceFileWriter
from tests.server.tracing.trace_facts import facts


def ids(path):
    return sorted({each["id"] for each in json.loads(path.read_bytes())})


def write(path, *jobs):
    """Write traces: each job is the number of a file, and then those of requests."""

    async def run():
        writer = TraceFileWriter(str(path))
        for number, *requests in jobs:
            writer.write([[facts(each)] for each in requests], 1, number)
        await writer.close(30.0)

    asyncio.run(run())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


def test_traces_are_added_to_the_file(path):
    write(path, (None, 1, 2), (None, 3))

    assert ids(path) == [1, 2, 3]


def test_numbered_files_are_beside_it(path):
    write(path, (0, 1), (1, 2, 3))

    assert {each.name: ids(each) for each in path.parent.iterdir()} == {
        "trace.json.0": [1],
        "trace.json.1": [2, 3],
    }


def test_traces_are_lost_while_there_is_no_thread_to_write_them(path, caplog, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    async def run():
        writer = TraceFileWriter(str(path))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            writer.write([[facts(1)]], 1, None)
        writer.write([[facts(2)]], 1, None)
        await writer.close(30.0)

    asyncio.run(run())

    assert ids(path) == [2]
    assert "Traces are lost: the server has no thread left to write them" in caplog.messages


def test_file_is_a_document_after_each_addition(path):
    main = MainFile(str(path))
    for number in range(3):
        main.add(b'{"id":%d}' % number)

        assert ids(path) == list(range(number + 1))


def test_older_file_is_replaced(path):
    path.write_text("something longer that was here before")
    write(path, (None, 1))

    assert ids(path) == [1]


def test_file_that_was_moved_away_begins_anew(path):
    main = MainFile(str(path))
    main.add(b'{"id":1}')
    path.rename(path.with_suffix(".old"))
    main.add(b'{"id":2}')

    assert ids(path) == [2]
    assert ids(path.with_suffix(".old")) == [1]


def test_link_stays_a_link(path):
    real = path.with_name("real.json")
    path.symlink_to(real)
    main = MainFile(str(path))
    main.add(b'{"id":1}')
    main.add(b'{"id":2}')

    assert path.is_symlink()
    assert ids(real) == [1, 2]


def test_failed_addition_leaves_the_file_as_it_was(path, monkeypatch):
    main = MainFile(str(path))
    main.add(b'{"id":1}')
    real_write = os.write
    is_full = iter([True])

    def fail(descriptor, data):
        if next(is_full, False):
            real_write(descriptor, data[:5])
            raise OSError(28, "No space left on device")
        return real_write(descriptor, data)

    monkeypatch.setattr(trace_files.os, "write", fail)
    with pytest.raises(OSError, match="No space"):
        main.add(b'{"id":2}')
    assert ids(path) == [1]

    main.add(b'{"id":3}')
    assert ids(path) == [1, 3]


def test_missing_folder_is_logged_once(tmp_path, caplog):
    write(tmp_path / "missing" / "trace.json", (None, 1), (0, 2), (None, 3))

    (message,) = caplog.messages
    assert message.startswith("Traces cannot be written, and are lost: ")
    assert "missing/trace.json" in message


def test_numbered_file_that_cannot_be_written_leaves_no_part(path, monkeypatch, caplog):
    def fail(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace_files.os, "write", fail)
    write(path, (0, 1))

    assert list(path.parent.iterdir()) == []
    assert len(caplog.messages) == 1


def test_pipe_gets_documents_line_by_line(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    main = MainFile(str(path))
    main.add(b'{"id":1}')
    main.add(b'{"id":2}')

    assert os.read(reading, 100) == b'[{"id":1}]\n[{"id":2}]\n'
    os.close(reading)


def test_traces_that_come_faster_than_the_disk_are_dropped(path, monkeypatch, caplog):
    monkeypatch.setattr(trace_files, "_MAX_WAITING_BYTES", -1)
    write(path, (None, 1), (None, 2))

    (message,) = caplog.messages
    assert message.startswith("Traces are lost: ")
    assert not path.exists()


def test_writer_without_traces_makes_no_file(path):
    write(path)

    assert not path.exists()
