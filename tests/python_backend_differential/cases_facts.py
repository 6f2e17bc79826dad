# SPDX-License-Identifier: Apache-2.0
"""What a model sees of `triton_python_backend_utils`, and what becomes of it in log and metrics."""

from __future__ import annotations

import json

import numpy as np

from tests.python_backend_differential import clients
from tests.python_backend_differential.clients import text
from tests.python_backend_differential.deadly import DEADLY_FACTS
from tests.recorded_suite import Case, Observation, Server


def ask_facts(group: str, server: Server) -> dict[str, Observation]:
    """What the model `facts` tells of one group."""
    deadly = DEADLY_FACTS.get(group, ()) if server.is_real else ()
    inputs = {
        "GROUP": text(group),
        "LEFT_OUT": np.array(list(deadly), dtype=object),
        "NUMBERS": np.array([3, 1, 2], np.int32),
    }
    answer = clients.infer_over_http(server, "facts", inputs, outputs=["FACTS"])
    if "error" in answer:
        raise ConnectionError(f"{group}: {answer['error']}")
    return dict(json.loads(clients.normalised(answer["outputs"][0][3][0], server)))


def facts(group: str) -> Case:
    """One group of facts."""
    return Case(group, lambda server: ask_facts(group, server))


GROUPS = """
tensor dtypes, tensor forms, tensor mistakes, tensor to DLPack, tensor from DLPack,
tensor from DLPack arrays,
request needs, request options, request defaults, request parameters, request received,
responses, response parameters, errors, members,
helper conversions, helper lookups, helper serialising, model config,
start, import,
metric families, metric deletion,
bls calls, bls failures, bls iterators, bls places,
control readiness, control loading, control unloading
"""


def logger(server: Server) -> dict[str, Observation]:
    """What the logger does, and the lines that it writes."""
    seen = ask_facts("logger", server)
    return {**seen, "lines": clients.log_lines(server, "fact: ", "fact: bytes")}


def process(server: Server) -> dict[str, Observation]:
    """Where a model runs, and where its standard output goes."""
    seen = ask_facts("process", server)
    return {**seen, "printed": clients.log_lines(server, "printed", "printed by a model")}


def metrics(group: str) -> Case:
    """What metrics do, and how they are shown."""

    def ask(server: Server) -> dict[str, Observation]:
        seen = ask_facts(group, server)
        shown = clients.metric_lines(server, "pbd_")
        ask_facts("metric gone", server)
        return {**seen, "shown": shown, "gone": clients.metric_lines(server, "pbd_")}

    return Case(group, ask)


CASES = (
    *(facts(" ".join(group.split())) for group in GROUPS.split(",")),
    *(metrics(group) for group in ("metric counters", "metric gauges", "metric histograms")),
    Case("logger", logger),
    Case("process", process),
)
