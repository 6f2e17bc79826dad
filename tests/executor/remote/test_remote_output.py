# SPDX-License-Identifier: Apache-2.0
"""What a model on another machine prints is in the server's log, under its instance's name."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from pytriton.runtime.cluster.child import OutputReturn
from pytriton.runtime.python_backend.output import LabelledStream
from pytriton.runtime.transport.link import stream_pair
from pytriton.runtime.transport.stream_channel import StreamChannel
from pytriton.runtime.worker_process.remote import RemoteOutput
from tests.executor.remote import remote_rig
from tests.executor.remote.plain_starter import PlainStarter
from tests.executor.worker_rig import until

MODEL = """
import json
import logging
import os
import subprocess
import sys
import threading

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        print("loads")
        logging.warning("a warning")
        os.write(2, b"of C code\\n")
        subprocess.run(["echo", "of a program"])

    def execute(self, requests):
        if json.loads(requests[0].parameters()).get("prints"):
            threading.Thread(target=self.print_for_ever, daemon=True).start()
        array = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array)])]

    def print_for_ever(self):
        while True:
            print("again " + "x" * 1000)
"""


class OutputStarter(PlainStarter):
    """Reads the output of its processes, as an actor does, and gives it back."""

    def _popen(self, command, **options):
        del options["stderr"]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
        )
        threading.Thread(target=self._read, args=[child], daemon=True).start()
        return child

    def _read(self, child):
        returned = OutputReturn(child.stdin)
        with child.stdout as output:
            for line in iter(output.readline, b""):
                returned.add(line)


@pytest.mark.parametrize("way", ["tcp:", "unix:"])
def test_output_of_a_remote_model_reaches_the_server(way, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_rig, "PlainStarter", OutputStarter)
    model = tmp_path / "1" / "model.py"
    model.parent.mkdir()
    model.write_text(MODEL)

    async def scenario(owner):
        lines = []
        owner.services.log = lambda line: lines.append((line.file, line.message))
        instance = await owner.launch("m_0_1", path=model)
        expected = ["loads", "WARNING:root:a warning", "of C code", "of a program"]
        await until(lambda: {("m_0_1@node-a", text) for text in expected} <= set(lines))
        await owner.infer(instance, prints=True)
        await until(lambda: any("lines of output were left out" in text for _, text in lines))
        for _ in range(20):
            assert (await owner.infer(instance)).responses
        instance.stop()
        await instance.ended

    remote_rig.run(scenario, way)


@pytest.fixture
def output():
    """The pipe, and the channel at the server's end."""
    reading, writing = os.pipe()
    ours, theirs = (StreamChannel(sock) for sock in stream_pair())
    others = set(threading.enumerate())
    RemoteOutput(reading, ours, "m_0_0").start()
    (thread,) = set(threading.enumerate()) - others
    yield writing, theirs
    os.close(writing)
    theirs.close()  # so that the thread does not wait until what it sends is read
    thread.join()  # or it might read from the next pipe, which gets the same number
    ours.close()
    os.close(reading)
    LabelledStream.is_returned = False


def test_lines_may_come_in_any_pieces(output):
    writing, server = output
    for piece in (b"one\ntw", b"o\n", "drei ü\n".encode(), b"\xff\n"):
        os.write(writing, piece)
    frames = [server.receive().frame for _ in range(4)]

    assert [frame.message for frame in frames] == ["one", "two", "drei ü", "�"]
    assert {(frame.level, frame.file) for frame in frames} == {("INFO", "m_0_0")}


def test_of_a_line_that_is_written_over_the_last_is_sent(output):
    writing, server = output
    os.write(writing, b"\n \n\r 10%\r 20%\r\nend\n")

    assert [server.receive().frame.message for _ in range(2)] == [" 20%", "end"]


@pytest.mark.parametrize("data", [b"x" * 200_000, b"\xff" * 120_000 + b"\n"])
def test_long_line_is_sent_in_messages_that_need_no_shared_memory(output, data):
    """Only threads that have the lock of the worker's memory may allocate in it."""
    writing, server = output
    os.set_blocking(writing, True)
    os.write(writing, data)

    for _ in range(4):
        assert 0 < len(server.receive().frame.message.encode()) <= 48 << 10


def test_what_is_printed_stays_text_if_the_server_formats_it(output, monkeypatch, tmp_path):
    monkeypatch.setattr(LabelledStream, "is_json", True)
    with (tmp_path / "out").open("wb") as file:
        stream = LabelledStream(file, "utf-8", line_buffering=True)
        stream.write("as it is\n")
        stream.flush()

        assert (tmp_path / "out").read_text() == "as it is\n"
