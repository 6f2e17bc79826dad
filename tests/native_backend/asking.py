# SPDX-License-Identifier: Apache-2.0
"""How the compared models are asked, and what is kept of their answers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.e2e.waiting import eventually
from tests.native_backend.building import backend_directory
from tests.python_backend_differential import clients
from tests.python_backend_differential.clients import text
from tests.recorded_suite import Case, Observation, Server, grouped

_EQUAL = 20  # so many equal answers in a row say that nothing changes any more
COUNTS = ("success", "fail", "cancel", "empty_response")


def asked(case: Case, server: Server) -> dict[str, Observation]:
    """The observations of a case without the folders of this run."""
    seen: dict[str, Observation] = json.loads(normalised(json.dumps(grouped(case, server)), server))
    return seen


def normalised(message: str, server: Server) -> str:
    """A text without the folders of this run."""
    message = message.replace(str(backend_directory()), "<backends>")
    message = message.replace(str(server.repository), "<models>")
    return message.replace(str(server.repository.parent), "<folder>")


def facts(text_of_facts: str) -> Observation:
    """Pairs of names and values. JSON is read, and calls that only succeeded are left out."""
    pairs = [line.split("\t", 1) for line in text_of_facts.split("\n") if "\t" in line]
    return [[name, _value(value)] for name, value in pairs if value != "ok"]


def _value(value: str) -> Observation:
    with contextlib.suppress(ValueError):
        if value.startswith("{"):
            return json.loads(value)
    return value


def scripted(server: Server, model: str, script: str, **options: Any) -> Observation:
    """The answer of a model that takes a script, over HTTP."""
    return clients.infer_over_http(server, model, {"SCRIPT": text(script)}, **options)


def scripted_in_json(server: Server, model: str, script: str) -> Observation:
    """The same, as JSON in both directions: the server itself reads the outputs."""
    tensor = {"name": "SCRIPT", "datatype": "BYTES", "shape": [1], "data": [script]}
    return posted(server, f"/v2/models/{model}/infer", {"inputs": [tensor]})


def streamed(server: Server, model: str, *inputs: dict[str, Any]) -> Observation:
    return clients.infer_over_stream(server, model, *inputs)


def told(server: Server, model: str, name: str, value: str, **options: Any) -> Observation:
    """What a model that answers with facts says."""
    answer = clients.infer_over_http(server, model, {name: text(value)}, **options)
    return answer if "error" in answer else facts(answer["outputs"][0][3][0])


def load(server: Server, model: str, *, shows_config: bool = False) -> Observation:
    """How a load ended, with the configuration of the model after it if that is of interest."""

    def call() -> Observation:
        client.load_model(model)
        return client.get_model_config(model) if shows_config else "loaded"

    with contextlib.closing(clients.open_http(server)) as client:
        return clients.outcome(server, call)


def unload(server: Server, model: str) -> None:
    with contextlib.closing(clients.open_http(server)) as client:
        client.unload_model(model)


def counts(server: Server, model: str) -> Observation:
    """The counters of a model, without times, once they change no more."""
    seen = [_counts(server, model)]

    def is_settled() -> bool:
        seen.append(_counts(server, model))
        return len(seen) > _EQUAL and seen[-_EQUAL:] == seen[-1:] * _EQUAL

    eventually(is_settled)
    return seen[-1]


def _counts(server: Server, model: str) -> Observation:
    with contextlib.closing(clients.open_http(server)) as client:
        [answer] = client.get_inference_statistics(model)["model_stats"]
    return {
        "inferences": answer["inference_count"],
        "executions": answer["execution_count"],
        **{name: _count(answer["inference_stats"], name) for name in ("success", "fail")},
        "batches": {
            str(each["batch_size"]): each["compute_infer"]["count"]
            for each in answer.get("batch_stats", [])
        },
        "responses": {
            key: {name: _count(each, name) for name in (*COUNTS, "compute_infer", "compute_output")}
            for key, each in sorted(answer.get("response_stats", {}).items())
        },
    }


def _count(statistics: dict[str, Any], name: str) -> int:
    return int(statistics.get(name, {}).get("count", 0))


def together(count: int, ask: Callable[[int], Observation]) -> list[Observation]:
    """What several clients at once get."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(ask, range(count)))


def posted(server: Server, path: str, document: dict[str, Any]) -> Observation:
    """The status and the JSON of a request over HTTP, as a whole."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http}{path}", json.dumps(document).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=clients.DEADLINE_S) as answer:
            return [answer.status, json.load(answer)]
    except urllib.error.HTTPError as error:
        return [error.code, json.load(error)]


def sample(datatype: str, rows: int = 2) -> np.ndarray[Any, Any]:
    """A tensor [rows, 3] of a datatype, BF16 as float32."""
    if datatype == "BYTES":
        values = [b"", b"\x00\xff", "grüß".encode()] * rows
        return np.array(values, dtype=object).reshape(rows, 3)
    if datatype == "BOOL":
        return np.array([True, False, True] * rows).reshape(rows, 3)
    name = datatype.lower().replace("fp", "float").replace("bf16", "float32")
    return np.arange(rows * 3).reshape(rows, 3).astype(name)
