# SPDX-License-Identifier: Apache-2.0
"""What clients see of a server: answers over HTTP, gRPC and streams, its log and its metrics."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.differential import grpc_case
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.recorded_suite import Observation, Server

Arrays = dict[str, np.ndarray[Any, Any]]

LINE_NUMBER = re.compile(r"\((\d+)\): ")
LINE_IN_TRACEBACK = re.compile(r", line \d+,")
OTHER_FRAME = re.compile(r"  (?:/|<frozen )[^\n\\]*\(\d+\): [^\n\\]*(?:\n|\\n)")
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
CLASS_MODULE = re.compile(r"(?:c_python_backend_utils|pytriton\.runtime\.pb_utils\.\w+)\.(\w+)")
COMPREHENSION_FRAME = re.compile(r"  [^\n\\]*: <listcomp>(?:\n|\\n)")  # gone since Python 3.12
LOG_LINE = re.compile(r"^([IWEV])\d{4} [\d:.]+ +\d+ ([\w.]+):(?:\d+)\] +(.*)$")


def text(value: str) -> np.ndarray[Any, Any]:
    """The tensor of one text, which most of the models take."""
    return np.array([value], dtype=object)


def normalised(message: str, server: Server) -> str:
    """A message without what differs from one run, or one edit of a model, to the next.

    Frames outside of the models' folder are those of the server and of Python's own import.
    """
    message = message.replace(str(server.repository), "<models>")
    message = OTHER_FRAME.sub("", message)
    message = COMPREHENSION_FRAME.sub("", message)
    message = ADDRESS.sub("0x0", message)
    message = CLASS_MODULE.sub(r"\1", message)
    return LINE_IN_TRACEBACK.sub(", line N,", LINE_NUMBER.sub("(N): ", message))


def outcome(server: Server, call: Callable[[], Observation]) -> Observation:
    """What a call gave, or how it was refused."""
    try:
        return call()
    except InferenceServerException as error:
        return {"status": error.status(), "error": normalised(error.message(), server)}
    except HTTPConnectionClosed as error:  # is no OSError; a suite begins another life then
        raise ConnectionError(str(error)) from error


def infer_over_http(
    server: Server, model: str, inputs: Arrays, outputs: Sequence[str] = (), **options: Any
) -> Observation:
    """An answer over HTTP."""

    def call() -> Observation:
        wanted = [http_client.InferRequestedOutput(name) for name in outputs] or None
        result = client.infer(model, _inputs(http_client, inputs), outputs=wanted, **options)
        return _observed(result.get_response(), result)

    with contextlib.closing(open_http(server)) as client:
        return outcome(server, call)


def infer_over_grpc(
    server: Server, model: str, inputs: Arrays, outputs: Sequence[str] = (), **options: Any
) -> Observation:
    """An answer over gRPC."""

    def call() -> Observation:
        wanted = [grpc_client.InferRequestedOutput(name) for name in outputs] or None
        result = client.infer(
            model,
            _inputs(grpc_client, inputs),
            outputs=wanted,
            client_timeout=DEADLINE_S,
            **options,
        )
        return _observed(result.get_response(as_json=True), result)

    with contextlib.closing(
        grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}")
    ) as client:
        return outcome(server, call)


def infer_over_stream(server: Server, model: str, *inputs: Arrays, **fields: Any) -> Observation:
    """What a stream of these requests, sent at once, gives: the responses of each, in order."""
    messages = []
    for number, arrays in enumerate(inputs):
        request = grpc_client._utils._get_inference_request(
            model_name=model,
            inputs=_inputs(grpc_client, arrays),
            model_version="",
            request_id=str(number),
            outputs=None,
            sequence_id=0,
            sequence_start=False,
            sequence_end=False,
            priority=0,
            timeout=None,
            parameters=fields or None,
        )
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        messages.append(request)
    case = grpc_case.stream(model, messages, view=grpc_case.by_id)
    seen = json.dumps(grpc_case.run(case, server.grpc))
    return json.loads(normalised(seen, server))


def open_http(server: Server) -> http_client.InferenceServerClient:
    return http_client.InferenceServerClient(
        f"127.0.0.1:{server.http}", network_timeout=DEADLINE_S, connection_timeout=DEADLINE_S
    )


def _inputs(client: Any, arrays: Arrays) -> list[Any]:
    made = []
    for name, array in arrays.items():
        tensor = client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def _observed(response: dict[str, Any], result: Any) -> Observation:
    outputs = [
        [
            output["name"],
            output["datatype"],
            [int(size) for size in output.get("shape", [])],
            [_value(value) for value in _flat(result.as_numpy(output["name"]))],
        ]
        for output in response.get("outputs", [])
    ]
    return {
        "id": response.get("id", ""),
        "version": response.get("model_version"),
        "outputs": outputs,
    }


def _flat(array: np.ndarray[Any, Any] | None) -> list[Any]:
    return [] if array is None else array.ravel().tolist()


def _value(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def log_lines(server: Server, mark: str, last: str) -> Observation:
    """The lines of the log with `mark`: severity, file and message. `last` is waited for."""
    eventually(lambda: last in server.log.read_text(errors="replace"))
    lines = [line for line in server.log.read_text(errors="replace").splitlines() if mark in line]
    found = [LOG_LINE.match(line) for line in lines]
    return [
        normalised(" ".join(match.groups()) if match else line, server)
        for line, match in zip(lines, found, strict=True)
    ]


def metric_lines(server: Server, prefix: str) -> Observation:
    """The lines of /metrics about families whose names begin with `prefix`."""
    address = f"http://127.0.0.1:{server.metrics}/metrics"
    with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
        lines = answer.read().decode().splitlines()
    pattern = re.compile(rf"(# \w+ )?{prefix}")
    return sorted(line for line in lines if pattern.match(line))
