# SPDX-License-Identifier: Apache-2.0
"""`pytriton perf` with a real server: over both protocols, with streams, files and a terminal."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pty
import signal
import subprocess
import sys

import pyte
import pytest

from pytriton.tools.commands.perf.command import run
from tests import peers
from tests.e2e.http_client import is_ready
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports
from tests.pictures import keep
from tests.repository_e2e.model_files import write_model
from tests.repository_e2e.server_process import ServerProcess

pytestmark = pytest.mark.e2e

ADD = {
    "config.pbtxt": """
backend: "python"
max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "b" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { }
""",
    "1/model.py": """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb.get_input_tensor_by_name(request, "a").as_numpy() for request in requests]
        return [
            pb.InferenceResponse(error=pb.TritonError("negative"))
            if (array < 0).any()
            else pb.InferenceResponse([pb.Tensor("b", array + 1)])
            for array in arrays
        ]
""",
}
WORDS = {
    "config.pbtxt": """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "word" data_type: TYPE_STRING dims: [ 1 ] } ]
""",
    "1/model.py": """
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb.get_input_tensor_by_name(request, "text").as_numpy()[0].decode()
            for word in text.split():
                sender.send(pb.InferenceResponse([pb.Tensor("word", np.array([word], object))]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
}
COUNT = ["--request-count", "40", "--no-progress"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("perf")
    for name, files in {"add": ADD, "words": WORDS}.items():
        write_model(folder / "models" / name, files)
    with ServerProcess(folder, [folder / "models"]) as running:
        running.await_ready()
        yield running


class Outcome:
    """What the command printed, and its exit code."""

    def __init__(self, arguments: list[str]) -> None:
        self.out: list[str] = []
        self.errors: list[str] = []
        self.code = run(arguments, self.out.append, self.errors.append)

    @property
    def text(self) -> str:
        return "\n".join(self.out)


def perf(server: ServerProcess, model: str, *arguments: str, grpc: bool = False) -> Outcome:
    port = server.grpc_port if grpc else server.http_port
    protocol = ["-i", "grpc"] if grpc else []
    return Outcome([model, "-u", f"127.0.0.1:{port}", *protocol, *arguments])


@pytest.mark.parametrize("grpc", [False, True])
def test_report_has_the_clients_and_the_servers_side(server, grpc):
    found = perf(server, "add", "--shape", "a:3", "-b", "2", *COUNT, grpc=grpc)

    assert found.code == 0, found.errors
    assert "Request concurrency: 1\n  Client: \n    Request count: 40\n" in found.text
    assert "    Inference count: 80\n    Execution count: 40\n" in found.text
    assert ("Avg gRPC time" if grpc else "Avg HTTP time") in found.text
    assert "Inferences/Second vs. Client Average Batch Latency\nConcurrency: 1, " in found.text


@pytest.mark.parametrize("grpc", [False, True])
def test_tensors_may_be_in_shared_memory(tmp_path, grpc):
    write_model(tmp_path / "models" / "add", ADD)
    shared = ["--shared-memory", "system", "--output-shared-memory-size", "4096"]
    with ServerProcess(tmp_path, [tmp_path / "models"], ["--allow-client-shm=true"]) as server:
        server.await_ready()

        found = perf(server, "add", "--shape", "a:3", *shared, *COUNT, grpc=grpc)

    assert found.code == 0, found.errors
    assert "    Inference count: 40\n" in found.text


@pytest.mark.parametrize("grpc", [False, True])
def test_streams_have_all_their_responses(server, grpc):
    found = perf(server, "words", "--string-data", "one two three", *COUNT, grpc=grpc)

    assert found.code == 0
    assert "    Avg responses per request: 3\n" in found.text
    assert "Avg time between responses" in found.text


@pytest.mark.part("docs")  # matplotlib
def test_levels_are_written_to_all_files(server, tmp_path):
    files = {name: str(tmp_path / name) for name in ("x.csv", "run.json", "export.json", "p.html")}

    found = perf(
        server, "add", "--shape", "a:2", "--concurrency-range", "1:7:2", "--quick", "-p", "120",
        "-f", files["x.csv"], "--json", files["run.json"], "--html", files["p.html"],
        "--profile-export-file", files["export.json"], "--plot", str(tmp_path / "p.png"),
        "--no-progress",
    )  # fmt: skip

    assert found.code == 0, found.errors
    with (tmp_path / "x.csv").open() as file:
        assert sorted(row["Concurrency"] for row in csv.DictReader(file)) == ["1", "3", "5", "7"]
    saved = json.loads((tmp_path / "run.json").read_text())
    assert [level["value"] for level in saved["runs"][0]["levels"]] == [1, 3, 5, 7]
    exported = json.loads((tmp_path / "export.json").read_text())
    request = exported["experiments"][1]["requests"][0]
    sent = request["request_inputs"]["a"]
    assert request["response_outputs"][0]["b"] == pytest.approx([value + 1 for value in sent])
    assert "Load test of add" in (tmp_path / "p.html").read_text()
    keep("perf.png", tmp_path / "p.png")


def test_two_servers_and_a_saved_run_are_compared(server, tmp_path):
    saved = str(tmp_path / "run.json")
    other = f"localhost:{server.http_port}"

    first = perf(server, "add", "--shape", "a:2", *COUNT, "--json", saved)
    second = perf(server, "add", "--shape", "a:2", *COUNT, "--against", other, "--compare", saved)

    assert (first.code, second.code) == (0, 0)
    assert f"127.0.0.1:{server.http_port} compared with {other}" in second.text
    assert f"127.0.0.1:{server.http_port} compared with run" in second.text


def test_data_of_a_file_is_sent_and_answers_are_checked(server, tmp_path):
    path = tmp_path / "data.json"
    path.write_text(
        json.dumps({"data": [{"a": [1]}, {"a": [2]}], "validation_data": [{"b": [2]}, {"b": [99]}]})
    )

    found = perf(server, "add", "--input-data", str(path), *COUNT)

    assert found.code == 0
    assert "    Failed request count: 20 of 40\n" in found.text


def test_errors_of_the_model_are_shown(server, tmp_path):
    path = tmp_path / "data.json"
    path.write_text('{"data": [{"a": [-1]}]}')

    found = perf(server, "add", "--input-data", str(path), *COUNT)

    assert found.code == 99
    assert "No request was answered well (40 failed): " in found.errors[0]
    assert "negative" in found.errors[0]


@pytest.mark.parametrize(
    "arguments, code, error",
    [
        (["none"], 99, "failed to get model metadata: Request for unknown model: 'none'"),
        (["add"], 99, "input a contains dynamic shape [-1], provide shapes"),
        (["add", "--shape", "a:1", "-b", "9"], 99, "-b 9 is above the max_batch_size of add, 8"),
        (["words", "-b", "2"], 99, "can not specify batch size > 1 as the model does not"),
        (["words", "--sync"], 99, "Decoupled models are measured with streams"),
        (["add", "--shape", "a:1", "--fixed-schedule"], 99, "needs --input-data with a timestamp"),
        (["add", "--shape", "a:1", "--compare", "none.json"], 99, "none.json cannot be read"),
    ],
)
def test_what_does_not_fit_is_said_before_any_load(server, arguments, code, error):
    found = perf(server, *arguments, "--no-progress")

    assert found.code == code
    assert error in found.errors[0]


def test_server_that_is_not_there_is_named():
    (port,) = free_ports(1)

    found = Outcome(["add", "-u", f"127.0.0.1:{port}"])

    assert found.code == 99
    assert f"the server at 127.0.0.1:{port} cannot be reached" in found.errors[0]


def test_terminal_shows_progress_and_ctrl_c_reports_what_there_is(server):
    master, slave = pty.openpty()
    screen = pyte.Screen(110, 40)
    stream = pyte.ByteStream(screen)
    process = subprocess.Popen(
        [
            sys.executable, "-m", "pytriton", "perf", "add", "-u",
            f"127.0.0.1:{server.http_port}", "--shape", "a:2", "-p", "600000",
        ],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "110", "LINES": "40"},
    )  # fmt: skip
    os.close(slave)

    def shown() -> str:
        try:
            stream.feed(os.read(master, 65536))
        except OSError:  # the program has closed its end
            return "\n".join(screen.display)
        return "\n".join(screen.display)

    assert eventually(lambda: "req/s" in shown() and "p99" in "\n".join(screen.display))
    assert "concurrency 1   window 1 of at most 10" in "\n".join(screen.display)
    os.kill(process.pid, signal.SIGINT)
    with contextlib.suppress(OSError):  # what Linux answers when the other end is closed
        while data := os.read(master, 65536):
            stream.feed(data)
    code = process.wait()
    os.close(master)

    assert code == 0
    text = "\n".join(line.rstrip() for line in screen.display)
    assert "Warning: interrupted; these are the numbers so far." in text
    assert "req/s" not in text  # the display is gone, and the report stays


@pytest.mark.part("peers")
def test_the_real_triton_is_measured_alike(tmp_path):
    write_model(tmp_path / "models" / "add", ADD)
    with ServerProcess(tmp_path, [tmp_path / "models"], command=peers.triton_command()) as triton:
        assert eventually(lambda: is_ready(triton.http_port))
        for grpc in (False, True):
            found = perf(triton, "add", "--shape", "a:2", *COUNT, grpc=grpc)

            assert found.code == 0, found.errors
            assert "    Successful request count: 40\n" in found.text
