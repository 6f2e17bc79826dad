# SPDX-License-Identifier: Apache-2.0
"""What execute may return and raise, in all its modes."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import numpy as np

from tests.python_backend_differential import clients
from tests.python_backend_differential.clients import text
from tests.recorded_suite import Case, Observation, Server

RETURNS = """
fine, tuple, generator, dict, response, text, number, truth, empty list, two responses,
entry of text, entry of tensor, entry of error, entry of list, no tensors, both outputs,
other order, unknown output, only an unknown output, other dtype, other shape,
empty output, empty bytes output, scalar output, error and tensors, empty error, error with lines
"""
RAISES = """
raise, raise nothing to say, raise a key, raise with two arguments, raise unicode, raise own,
raise of the module, raise wordless, raise deep, raise chained, raise index, raise in a library,
raise exit, raise interrupt, raise attribute, raise stop
"""
CODES = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED"
COROUTINES = """
one call, gathered, iterated, of a coupled model, unknown model, decoupled without saying so,
exec that waits, nested, loop
"""


def words(table: str) -> list[str]:
    return [" ".join(entry.split()) for entry in table.split(",")]


def coupled(script: str) -> Case:
    def ask(server: Server) -> dict[str, Observation]:
        return {"HTTP": clients.infer_over_http(server, "returns", {"SCRIPT": text(script)})}

    return Case(f"execute {script}", ask)


def code(name: str) -> Case:
    inputs = {"SCRIPT": text(f"error {name}")}
    return Case(
        f"error {name}",
        lambda server: {
            "HTTP": clients.infer_over_http(server, "returns", inputs),
            "gRPC": clients.infer_over_grpc(server, "returns", inputs),
            "stream": clients.infer_over_stream(server, "returns", inputs),
        },
    )


def decoupled(script: str) -> Case:
    inputs = {"SCRIPT": text(script)}
    return Case(
        f"decoupled execute {script}",
        lambda server: {"stream": clients.infer_over_stream(server, "returns_decoupled", inputs)},
    )


def coroutine(script: str) -> Case:
    inputs = {"SCRIPT": text(script)}
    return Case(
        f"coroutine {script}",
        lambda server: {
            "coupled": clients.infer_over_http(server, "coroutine", inputs),
            "decoupled": clients.infer_over_stream(server, "coroutine_decoupled", inputs),
        },
    )


def coupled_coroutine(script: str) -> Case:
    inputs = {"SCRIPT": text(script)}
    return Case(
        f"coroutine {script}",
        lambda server: {"coupled": clients.infer_over_http(server, "coroutine", inputs)},
    )


def batch(name: str, *actions: int) -> Case:
    """Requests that are executed together; the delay of the batcher waits for four rows."""

    def ask(server: Server) -> dict[str, Observation]:
        def one(action: int) -> Observation:
            numbers = np.full((1, 2), action, np.int32)
            return clients.infer_over_http(server, "batched", {"NUMBERS": numbers})

        with concurrent.futures.ThreadPoolExecutor(len(actions)) as pool:
            answers = list(pool.map(one, actions))
        return {f"{place} of {len(actions)}": answer for place, answer in enumerate(answers)}

    return Case(f"batch {name}", ask)


def iterative(name: str, model: str, number: int, **options: Any) -> Case:
    inputs = {"NUMBERS": np.array([[number]], np.int32)}
    return Case(
        f"iterative {name}",
        lambda server: {"HTTP": clients.infer_over_http(server, model, inputs, **options)},
    )


def counted(server: Server) -> list[int]:
    with clients.open_http(server) as client:
        stats = client.get_inference_statistics("returns")["model_stats"][0]
    inferences = stats["inference_stats"]
    return [inferences["success"]["count"], inferences["fail"]["count"], stats["inference_count"]]


def statistics(server: Server) -> dict[str, Observation]:
    """What one request adds to successes, failures and inferences."""
    seen = {}
    for script in ("fine", "raise", "tuple", "error NOT_FOUND"):
        before = counted(server)
        clients.infer_over_http(server, "returns", {"SCRIPT": text(script)})
        seen[script] = [now - then for now, then in zip(counted(server), before, strict=True)]
    return seen


CASES = (
    *(coupled(script) for script in words(RETURNS + "," + RAISES)),
    *(code(name) for name in CODES.split()),
    *(decoupled(script) for script in ("fine", "tuple", "raise", "number", "truth")),
    *(coroutine(script) for script in words(COROUTINES)),
    *(coupled_coroutine(script) for script in ("failing", "wrong return", "where it runs")),
    Case("statistics", statistics),
    batch("of good requests", 10, 11, 12, 13),
    batch("with a failed one", 10, 1, 12, 13),
    batch("with an exception", 10, 2, 12, 13),
    batch("with a sent one", 10, 3, 12, 13),
    batch("with a sent one and an exception", 10, 2, 12, 3),
    batch("with more rows than asked for", 10, 4, 12, 13),
    iterative("one pass", "iterative", 1),
    iterative("three passes", "iterative", 3, request_id="abc"),
    iterative("exception", "iterative", 77),
    iterative("error", "iterative", 78),
    iterative("answer", "iterative", 79),
    iterative("once more", "iterative", 2),
    iterative("not configured", "not_iterative", 2),
)
