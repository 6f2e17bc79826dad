# SPDX-License-Identifier: Apache-2.0
"""Requests to the backends in C: tensors, batches, streams, mistakes, sequences."""

from __future__ import annotations

import hashlib
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as grpc_client

from tests.native_backend.asking import (
    counts,
    posted,
    sample,
    scripted,
    scripted_in_json,
    streamed,
    together,
)
from tests.native_backend.models import CODES, DATATYPES
from tests.python_backend_differential import clients
from tests.python_backend_differential.clients import text
from tests.recorded_suite import Case, Observation, Server

ODD = """
small buffer, large buffer, other shape, negative shape, empty output, unknown output, both outputs,
other datatype, no outputs, fine
"""
ONLY_OURS = "huge buffer, no buffer, after final, misuse, release only, release twice"


def identity(datatype: str) -> Case:
    def ask(server: Server) -> dict[str, Observation]:
        return {
            "HTTP": clients.infer_over_http(server, "identity", {datatype: sample(datatype)}),
            "gRPC": clients.infer_over_grpc(server, "identity", {datatype: sample(datatype, 1)}),
        }

    return Case(f"identity {datatype}", ask)


def ask_bf16(server: Server) -> dict[str, Observation]:
    """As JSON: clients in Python have no numpy type for it."""
    document = {"inputs": [{"name": "BF16", "datatype": "BF16", "shape": [1, 2], "data": [1, 2]}]}
    return {"JSON": posted(server, "/v2/models/identity/infer", document)}


def ask_large(server: Server) -> dict[str, Observation]:
    array = np.arange(1 << 20, dtype=np.int32).reshape(1, -1)
    answer = clients.infer_over_http(server, "identity", {"INT32": array})
    [[name, datatype, shape, values]] = answer["outputs"]
    digest = hashlib.sha256(np.array(values, np.int32).tobytes()).hexdigest()
    return {"answer": [name, datatype, shape, digest]}


def ask_parameters(server: Server) -> dict[str, Observation]:
    document = {
        "inputs": [{"name": "INT32", "datatype": "INT32", "shape": [1, 1], "data": [1]}],
        "parameters": {"word": "a", "number": -3, "truth": False, "real": 0.5},
    }
    return {"HTTP": posted(server, "/v2/models/identity/infer", document)}


def ask_empty(server: Server) -> dict[str, Observation]:
    return {
        "no elements": clients.infer_over_http(
            server, "identity", {"INT32": np.zeros((1, 0), np.int32)}
        ),
        "one output": clients.infer_over_http(
            server,
            "identity",
            {"INT32": sample("INT32"), "FP32": sample("FP32")},
            outputs=["OUT_FP32"],
        ),
        "too many rows": clients.infer_over_http(server, "identity", {"INT32": sample("INT32", 9)}),
    }


def ask_together(server: Server) -> dict[str, Observation]:
    def ask(number: int) -> Observation:
        array = np.full((1, 2), number, np.int32)
        return clients.infer_over_http(server, "identity_together", {"INT32": array})

    return {"answers": together(4, ask), "counts": counts(server, "identity_together")}


def repeat_inputs(values: list[int], delays: list[int], wait: int = 0) -> dict[str, Any]:
    return {
        "IN": np.array(values, np.int32),
        "DELAY": np.array(delays, np.uint32),
        "WAIT": np.array([wait], np.uint32),
    }


def ask_repeat(server: Server) -> dict[str, Observation]:
    before = counts(server, "repeat")
    seen = {
        "four": streamed(server, "repeat", repeat_inputs([4, 2, 0, 1], [1, 2, 3, 4], 5)),
        "none": streamed(server, "repeat", repeat_inputs([], [])),
        "mismatch": streamed(server, "repeat", repeat_inputs([1], [1, 2])),
        "two requests": streamed(
            server, "repeat", repeat_inputs([1, 2, 3], [9, 9, 9]), repeat_inputs([7, 8], [1, 1])
        ),
        "HTTP": clients.infer_over_http(server, "repeat", repeat_inputs([1], [0])),
        "gRPC": clients.infer_over_grpc(server, "repeat", repeat_inputs([1], [0])),
    }
    after = counts(server, "repeat")
    return {**seen, "counts": [before, after]}


def ask_repeat_coupled(server: Server) -> dict[str, Observation]:
    one = repeat_inputs([6], [3])
    return {
        "HTTP": clients.infer_over_http(server, "repeat_coupled", one),
        "gRPC": clients.infer_over_grpc(server, "repeat_coupled", one),
        "stream": streamed(server, "repeat_coupled", one),
    }


def ask_square(server: Server) -> dict[str, Observation]:
    numbers = [{"IN": np.array([number], np.int32)} for number in (4, 2, 0, 1)]
    return {
        "plain": streamed(server, "square", *numbers),
        "scripted": streamed(server, "square_scripted", {"IN": np.array([5], np.int32)}),
        "counts": counts(server, "square"),
        "scripted counts": counts(server, "square_scripted"),
    }


def ask_cancelled(server: Server) -> dict[str, Observation]:
    """A client that goes away in the middle: the backend's thread sees it."""
    request = grpc_client._utils._get_inference_request(
        model_name="square_slow",
        inputs=clients._inputs(grpc_client, {"IN": np.array([500], np.int32)}),
        model_version="",
        request_id="",
        outputs=None,
        sequence_id=0,
        sequence_start=False,
        sequence_end=False,
        priority=0,
        timeout=None,
        parameters=None,
    )
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        stub = grpc_client.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stream = stub.ModelStreamInfer(iter([request]))
        next(stream)
        stream.cancel()
    return {"log": clients.log_lines(server, "square: cancelled", "square: cancelled")}


def failing(script: str) -> Case:
    inputs = {"SCRIPT": text(script)}
    return Case(
        f"failing {script}",
        lambda server: {
            "HTTP": clients.infer_over_http(server, "failing", inputs),
            "gRPC": clients.infer_over_grpc(server, "failing", inputs),
        },
    )


def ask_counts_of_failures(server: Server) -> dict[str, Observation]:
    return {"counts": counts(server, "failing")}


def odd(script: str, *, only_ours: bool = False) -> Case:
    def ask(server: Server) -> dict[str, Observation]:
        return {
            "HTTP": scripted_in_json(server, "odd", script),
            "stream": streamed(server, "odd_decoupled", {"SCRIPT": text(script)}),
        }

    return Case(f"odd {script}", ask, only_ours)


def ask_threads(server: Server) -> dict[str, Observation]:
    return {
        script: [
            scripted(server, "odd", script),
            streamed(server, "odd_decoupled", {"SCRIPT": text(script)}),
            together(6, lambda _number: scripted(server, "odd", script)),  # noqa: B023
        ]
        for script in ("thread", "leaking thread")
    }


def ask_sequences(server: Server) -> dict[str, Observation]:
    def ask(number: int, script: str, **options: Any) -> Observation:
        inputs = {
            "IN": np.array([[number]], np.int32),
            "SCRIPT": np.array([[script]], dtype=object),
        }
        answer = clients.infer_over_http(server, "stateful", inputs, **options)
        return answer if "error" in answer else answer["outputs"]

    return {
        "sums": [
            ask(1, "", sequence_id=5, sequence_start=True),
            ask(10, "", sequence_id=6, sequence_start=True),
            ask(2, "", sequence_id=5),
            ask(3, "no update", sequence_id=5),
            ask(4, "", sequence_id=5, sequence_end=True),
            ask(20, "", sequence_id=6, sequence_end=True),
        ],
        "unknown state": ask(
            1, "unknown state", sequence_id=8, sequence_start=True, sequence_end=True
        ),
        "other datatype": ask(
            1, "other datatype", sequence_id=9, sequence_start=True, sequence_end=True
        ),
        "started again": [
            ask(1, "", sequence_id=5, sequence_start=True),
            ask(1, "", sequence_id=5, sequence_end=True),
        ],
    }


REQUEST_CASES = [
    *(identity(datatype) for datatype in DATATYPES if datatype != "BF16"),
    Case("identity BF16", ask_bf16),
    Case("identity large", ask_large),
    Case("identity parameters", ask_parameters),
    Case("identity empty", ask_empty),
    Case("together", ask_together),
    Case("repeat", ask_repeat),
    Case("repeat coupled", ask_repeat_coupled),
    Case("square", ask_square),
    Case("cancelled", ask_cancelled),
    *(failing(f"execute {code}") for code in CODES.split()),
    *(failing(f"respond {code}") for code in CODES.split()),
    *(failing(script) for script in ("empty text", "unicode", "output and error", "fine")),
    Case("failures", ask_counts_of_failures),
    *(odd(" ".join(script.split())) for script in ODD.split(",")),
    *(odd(" ".join(script.split()), only_ours=True) for script in ONLY_OURS.split(",")),
    Case("threads", ask_threads),
    Case("sequences", ask_sequences),
]
