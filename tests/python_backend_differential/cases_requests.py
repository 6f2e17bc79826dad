# SPDX-License-Identifier: Apache-2.0
"""What a model sees of requests as clients send them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.python_backend_differential import clients
from tests.recorded_suite import Case

EVERY_DTYPE = {
    "BOOL": np.array([True, False]),
    **{
        np.dtype(name).name.upper(): np.array([0, 100], name)
        for name in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
    },
    "FP16": np.array([0.5, -2], np.float16),
    "FP32": np.array([1e-3, 3e38], np.float32),
    "FP64": np.array([1e-300, np.pi]),
    "BYTES": np.array([b"", "é".encode(), b"\x00\xff"], dtype=object),
}
ONE = {"INT32": np.array([5], np.int32)}

REQUESTS: dict[str, dict[str, Any]] = {
    "every dtype": {"inputs": EVERY_DTYPE},
    "no inputs": {"inputs": {}},
    "empty tensors": {
        "inputs": {"FP32": np.zeros(0, np.float32), "BYTES": np.zeros(0, dtype=object)}
    },
    "one output": {"inputs": ONE, "outputs": ["OUT_INT32"]},
    "output that is not made": {"inputs": ONE, "outputs": ["OUT_FP32", "SEEN"]},
    "output that is not known": {"inputs": ONE, "outputs": ["NOWHERE"]},
    "id": {"inputs": ONE, "outputs": ["SEEN"], "request_id": "an id"},
    "sequence": {
        "inputs": ONE,
        "outputs": ["SEEN"],
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": True,
    },
    "sequence of text": {"inputs": ONE, "outputs": ["SEEN"], "sequence_id": "seven"},
    "priority": {"inputs": ONE, "outputs": ["SEEN"], "priority": 1},
    "parameters": {
        "inputs": ONE,
        "outputs": ["SEEN"],
        "parameters": {"text": "é", "number": -5, "truth": False, "headers_like": "x"},
    },
    "unknown input": {"inputs": {"NOWHERE": np.zeros(1, np.int32)}},
    "input of another dtype": {"inputs": {"INT32": np.zeros(1, np.int64)}},
    "input of another shape": {"inputs": {"INT32": np.zeros((1, 1), np.int32)}},
}


def over_both(name: str, request: dict[str, Any]) -> Case:
    """A request over HTTP and over gRPC."""
    return Case(
        f"sent request {name}",
        lambda server: {
            "HTTP": clients.infer_over_http(server, "mirror", **request),
            "gRPC": clients.infer_over_grpc(server, "mirror", **request),
        },
    )


CASES = (
    *(over_both(name, request) for name, request in REQUESTS.items()),
    Case(
        "sent request float parameter",
        lambda server: {
            "gRPC": clients.infer_over_grpc(
                server, "mirror", ONE, ["SEEN"], parameters={"float": 1.5}
            )
        },
    ),
)
