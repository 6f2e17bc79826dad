# SPDX-License-Identifier: Apache-2.0
"""Texts of trace files for tests."""

from __future__ import annotations

import json

MODEL_TIMES = {
    "REQUEST_START": 1_000,
    "QUEUE_START": 2_000,
    "COMPUTE_START": 12_000,
    "COMPUTE_INPUT_END": 15_000,
    "COMPUTE_OUTPUT_START": 115_000,
    "COMPUTE_END": 120_000,
    "REQUEST_END": 125_000,
}
HTTP_TIMES = {
    "HTTP_RECV_START": -9_000,
    "HTTP_RECV_END": 0,
    "INFER_RESPONSE_COMPLETE": 125_000,
    "HTTP_SEND_START": 126_000,
    "HTTP_SEND_END": 130_000,
}
GRPC_TIMES = {
    "GRPC_WAITREAD_START": -1_000_000,
    "GRPC_WAITREAD_END": 0,
    "GRPC_SEND_START": 126_000,
    "GRPC_SEND_END": 130_000,
}


def request(number=1, times=(), model="m", *, shift_us=0, base_us=10_000, **more):
    """The objects of a request, whose times are those of its model and others."""
    made = [{"id": number, "model_name": model, "model_version": 1, **more}]
    for name, ns in {**MODEL_TIMES, **dict(times)}.items():
        at_ns = ns + (base_us + shift_us) * 1000
        made.append({"id": number, "timestamps": [{"name": name, "ns": at_ns}]})
    return made


def text_of(*requests):
    return json.dumps([each for made in requests for each in made])
