# SPDX-License-Identifier: Apache-2.0
"""The log of a running command: settings that change, and the ids of requests on its lines."""

from __future__ import annotations

import json
import queue
import re
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.e2e.http_client import call
from tests.e2e.waiting import DEADLINE_S, eventually, whole_lines
from tests.repository_e2e.model_files import code, config, ensemble

COUNT = 64
TALK = """
name = request.request_id()
pb_utils.Logger.log_verbose(f"verbose {name}.")
pb_utils.Logger.log_info(f"info {name}.")
pb_utils.Logger.log_warn(f"warning {name}.")
pb_utils.Logger.log_error(f"error {name}.")
logging.getLogger("user").warning("logged %s.", name)
print(f"printed {name}.\\nand {name}.")
if x.flat[0] == 7:
    raise ValueError(f"seven {name}.")
y = x
"""
ASYNC = """
import asyncio, logging
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            name = request.request_id()
            pb_utils.Logger.log_info(f"begins {name}.")
            await asyncio.sleep(0.02)
            await asyncio.to_thread(print, f"in a thread {name}.")
            await asyncio.create_task(self.step(name))
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())])
            for request in requests
        ]

    async def step(self, name):
        await asyncio.sleep(0.01)
        pb_utils.Logger.log_info(f"ends {name}.")
"""
MODELS = {
    "talk": {
        "config.pbtxt": config(max_batch_size=0),
        "1/model.py": code(TALK, top="import logging"),
    },
    "batched": {"config.pbtxt": config(), "1/model.py": code(TALK, top="import logging")},
    "chain": ensemble("batched", "batched"),
    "waits": {"config.pbtxt": config(max_batch_size=0), "1/model.py": ASYNC},
}


@pytest.fixture
def server(start_server):
    return start_server(MODELS).await_ready()


def http(server):
    return triton_http.InferenceServerClient(f"127.0.0.1:{server.http_port}")


def grpc(server):
    return triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")


def infer(client, request_id, *, model="talk", value=1.0):
    kit = triton_http if isinstance(client, triton_http.InferenceServerClient) else triton_grpc
    shape = [1, 1] if model == "chain" else [1]
    tensor = kit.InferInput("X", shape, "FP32")
    tensor.set_data_from_numpy(np.full(shape, value, np.float32))
    client.infer(model, [tensor], request_id=request_id)


def lines(server, mark, count=1):
    """The lines with a mark, once there are so many: some are written after the answer."""

    def found():
        return [line for line in server.output.splitlines() if mark in line]

    assert eventually(lambda: len(found()) >= count), server.output
    return found()


@pytest.mark.parametrize("connect", [http, grpc])
def test_every_line_of_a_request_has_its_id(server, connect):
    with connect(server) as client:
        infer(client, "mine\n\x1b")
        with pytest.raises(InferenceServerException):
            infer(client, "bad", value=7.0)
        infer(client, "")

    shown = "mine\\n\\u001b"
    # Three of the server's log, and six that the model wrote with a line break in them.
    assert len(lines(server, f"[request id: {shown}]", 9)) == 9
    begun = [line for line in lines(server, "bad.") if "ValueError" not in line or "Failed" in line]
    assert begun
    assert all("[request id: bad] " in line for line in begun)
    assert "[request id: ]" not in server.output
    assert [line for line in lines(server, "printed .") if not line.startswith("printed")] == []


def test_lines_of_an_ensembles_steps_have_its_id(server):
    with http(server) as client:
        infer(client, "whole", model="chain")

    assert len(lines(server, "and whole.", 2)) == 2
    assert all("[request id: whole] " in line for line in lines(server, "whole."))


@pytest.mark.parametrize("model", ["talk", "waits"])
def test_many_requests_at_the_same_time_have_only_their_own_ids(server, model):
    names = [f"r{number}r" for number in range(COUNT)]
    with grpc(server) as client, ThreadPoolExecutor(COUNT) as pool:
        list(pool.map(lambda name: infer(client, name, model=model), names))

    last = "printed" if model == "talk" else "ends"
    for name in names:
        assert lines(server, f"{last} {name}.")
        for line in lines(server, f"{name}.", 3):
            assert f"[request id: {name}] " in line
            assert line.count("request id") == 1


def test_json_lines_have_the_id_and_the_exception(start_server):
    server = start_server(MODELS, flags=["--log-format=json"]).await_ready()
    with http(server) as client:
        infer(client, "good")
        with pytest.raises(InferenceServerException):
            infer(client, "bad", value=7.0)
        shown = client.get_log_settings()

    def entries():
        written = (*whole_lines(server.folder / "stdout"), *whole_lines(server.folder / "stderr"))
        return [json.loads(line) for line in written]

    def of_good(*, printed):
        return [
            entry["message"]
            for entry in entries()
            if entry.get("request_ids") == ["good"] and (entry["file"] == "stdout") == printed
        ]

    logged = {"info good.", "warning good.", "error good.", "logged good."}
    assert shown["log_format"] == "json"
    assert eventually(lambda: of_good(printed=True) == ["printed good.", "and good."])
    assert eventually(lambda: logged <= set(of_good(printed=False)))
    assert eventually(lambda: [entry for entry in entries() if "exception" in entry])
    (failed,) = [entry for entry in entries() if "exception" in entry]
    assert failed["request_ids"] == ["bad"]
    assert "Traceback" in failed["exception"]


@pytest.mark.parametrize("connect", [http, grpc])
def test_every_request_has_its_lines_while_the_log_is_verbose(server, connect):
    with connect(server) as client:

        def ask(count):
            for _ in range(count):
                infer(client, "")

        ask(100)  # the last ones travel as columns
        client.update_log_settings({"log_verbose_level": 1})
        ask(10)
        infer(client, "known")
        with pytest.raises(InferenceServerException):
            infer(client, "failed", value=7.0)
        client.update_log_settings({"log_verbose_level": 2})
        ask(1)
        client.update_log_settings({"log_verbose_level": 0})
        ask(100)
        infer(client, "last")
    assert lines(server, "printed last.")

    arrival = "HTTP request: POST" if connect is http else "gRPC call:"
    expected = {
        "us and was answered with 1 response(s)": 12,
        f'"{arrival}': 15,  # with the two changes of settings
        "\"[request id: known] request for model 'talk' took ": 1,
        "\"[request id: failed] request for model 'talk' took ": 1,
        " us and failed: Failed to process the request(s)": 1,
        "request for model 'talk' with X FP32 [1], for all outputs": 1,
    }

    def counts():
        output = server.output
        return {text: output.count(text) for text in expected}

    assert eventually(lambda: counts() == expected), counts()


@pytest.mark.parametrize("connect", [http, grpc])
def test_errors_before_a_model_is_asked_are_logged_while_the_log_is_verbose(server, connect):
    def ask_unknown(client):
        with pytest.raises(InferenceServerException):
            client.get_model_metadata("unknown")

    with connect(server) as client:
        ask_unknown(client)
        client.update_log_settings({"log_verbose_level": 1})
        ask_unknown(client)
        client.update_log_settings({"log_verbose_level": 0})
        ask_unknown(client)

    status = "HTTP error 404" if connect is http else "gRPC error NOT_FOUND"
    text = f"\"{status}: Request for unknown model: 'unknown' is not found\""
    assert len(lines(server, text)) == 1


def test_refused_http_requests_are_logged_while_the_log_is_verbose(start_server):
    server = start_server(MODELS, flags=["--log-verbose=1"]).await_ready()
    with socket.create_connection(("127.0.0.1", server.http_port)) as client:
        client.sendall(b"NOT HTTP\r\n\r\n")
        client.recv(1000)

    assert lines(server, "HTTP error 400: ")


SEQUENCES = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
sequence_batching { max_sequence_idle_microseconds: 10000000 }
"""
NUMBERS = """
if request.request_id() != f"r{int(x.flat[0])}":
    raise ValueError(f"expected r{int(x.flat[0])}, got {request.request_id()!r}")
pb_utils.Logger.log_info("of a sequence.")
y = x
"""


def test_requests_of_streamed_sequences_keep_their_ids(start_server):
    models = {"sums": {"config.pbtxt": SEQUENCES, "1/model.py": code(NUMBERS)}}
    server = start_server(models).await_ready()
    answers = queue.Queue()
    count = 300  # most of them travel as columns
    with grpc(server) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(count):
            tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.full((1, 1), number, np.float32))
            client.async_stream_infer(
                "sums",
                [tensor],
                request_id=f"r{number}",
                sequence_id=5,
                sequence_start=number == 0,
                sequence_end=number == count - 1,
            )
        client.stop_stream()
    seen = [answers.get(timeout=DEADLINE_S) for _ in range(count)]

    assert [str(error) for _, error in seen if error is not None] == []
    assert [result.get_response().id for result, _ in seen] == [f"r{n}" for n in range(count)]

    def ids():
        return set(re.findall(r"\[request id: (r\d+)\] of a sequence", server.output))

    assert eventually(lambda: len(ids()) == count), ids()


def kept_lines(server, **wanted):
    query = "&".join(f"{name}={value}" for name, value in wanted.items())
    headers = {"triton-access-token": "page-secret"}
    answer = call(server.metrics_port, f"/page/api/log?{query}", headers=headers)
    return answer.json["lines"]


@pytest.mark.parametrize("front_ends", [0, 2])
def test_page_has_what_a_model_prints_logs_and_raises(start_server, front_ends):
    server = start_server(
        MODELS,
        flags=[f"--frontend-processes={front_ends}"],
        environment={"PYTRITON_PAGE_TOKEN": "page-secret"},
    ).await_ready()
    with http(server) as client:
        infer(client, "order-17")
        for number in range(3):
            with pytest.raises(InferenceServerException):
                infer(client, f"bad-{number}", value=7)

    def texts(**wanted):
        return [line["text"] for line in kept_lines(server, model="talk", **wanted)]

    written = {"printed order-17.", "and order-17.", "info order-17.", "error order-17."}
    assert eventually(lambda: written <= set(texts(text="order-17"))), texts()
    assert {line["model"] for line in kept_lines(server, text="order-17")} == {"talk"}
    (worker,) = {line["process"] for line in kept_lines(server, text="order-17")}
    assert worker != server.pid
    assert eventually(lambda: any("Traceback" in text for text in texts(level="ERROR")))
    (failure,) = [text for text in texts(level="ERROR") if "Traceback" in text]
    assert failure.startswith("model 'talk': ValueError: seven bad-0. at model.py:")
    assert "pytriton/runtime" not in failure
    assert server.output.count("printed order-17.") == 1
    assert server.output.count("Traceback") == 1
    server.end()
    assert "(2 more times in the last " in server.output
