# SPDX-License-Identifier: Apache-2.0
"""What the functions of the API answer, told by the backends `facts` and `caller`."""

from __future__ import annotations

from typing import Any

from tests.native_backend.asking import facts as read_facts
from tests.native_backend.asking import told
from tests.python_backend_differential import clients
from tests.python_backend_differential.clients import text
from tests.recorded_suite import Case, Observation, Server

GROUPS = (
    "names messages parameters errors buffers log backend memory model instance server request "
    "inputs responses statistics metrics histograms"
)
CALLS = """
plain, output, unknown output, parameters, two buffers, repeat, failing, no inputs, unknown input,
wrong datatype, wrong size, input twice, unknown model, unknown version, request
"""


def group(name: str) -> Case:
    return Case("facts", lambda server: {name: told(server, "facts", "GROUP", name)})


def request(name: str, **options: Any) -> Case:
    return Case(
        "request", lambda server: {name: told(server, "facts", "GROUP", "request", **options)}
    )


def call(script: str) -> Case:
    return Case("call", lambda server: {script: told(server, "caller", "SCRIPT", script)})


def ask_log(server: Server) -> dict[str, Observation]:
    told(server, "facts", "GROUP", "log")
    return {"lines": clients.log_lines(server, "facts: a line", "facts: a line")}


def ask_metrics(server: Server) -> dict[str, Observation]:
    return {"page": clients.metric_lines(server, "facts_")}


def ask_grpc(server: Server) -> dict[str, Observation]:
    answer = clients.infer_over_grpc(
        server, "facts", {"GROUP": text("request")}, request_id="over gRPC", timeout=7000000
    )
    return {"facts": read_facts(answer["outputs"][0][3][0])}


FACT_CASES = [
    *(group(name) for name in GROUPS.split()),
    request("with an id", request_id="mine"),
    request("with a timeout", timeout=5000000),
    request("with a priority", priority=3),
    request("with a sequence", sequence_id=9, sequence_start=True),
    request("with a sequence of a word", sequence_id="nine", sequence_end=True),
    request("with parameters", parameters={"a": 1, "b": "c", "d": True}),
    request("with outputs", outputs=["FACTS"]),
    Case("request over gRPC", ask_grpc),
    Case("log", ask_log),
    Case("metrics", ask_metrics),
    *(call(" ".join(script.split())) for script in CALLS.split(",")),
]
