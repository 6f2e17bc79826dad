# SPDX-License-Identifier: Apache-2.0
"""Bound functions as sequence models: controls and states as arguments, states as outputs."""

from __future__ import annotations

import functools
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.model_config import (
    ControlKind,
    DirectStrategy,
    OldestStrategy,
    SequenceBatcher,
    SequenceControl,
    SequenceState,
    Tensor,
)
from tests.e2e import http_client

pytestmark = pytest.mark.both_front_end_modes

X = Tensor(name="x", dtype=np.float32, shape=(1,))
Y = Tensor(name="y", dtype=np.float32, shape=(1,))
SUM = SequenceState("sum_in", "sum_out", np.float32, (1,))
STRATEGIES = [DirectStrategy(), OldestStrategy(8)]
# On a busy machine, the next request of a sequence may take longer than the second of the default.
Sequences = functools.partial(SequenceBatcher, max_sequence_idle_microseconds=60_000_000)


def step(host, model, sequence_id, value, *, start=False, end=False, outputs=None):
    """Send a request of a sequence; returns its outputs, or status and text of a failure."""
    parameters = {"sequence_id": sequence_id, "sequence_start": start, "sequence_end": end}
    members = {"parameters": parameters}
    if outputs is not None:
        members["outputs"] = [{"name": name} for name in outputs]
    body = http_client.json_body({"x": np.array([[value]], np.float32)}, **members)
    answer = http_client.call(host.port, f"/v2/models/{model}/infer", body)
    if answer.status != 200:
        return answer.status, answer.error
    return {output["name"]: output["data"] for output in answer.json["outputs"]}


@batch
def accumulate(x, sum_in):
    return {"y": x + sum_in, "sum_out": x + sum_in}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_state_is_passed_on_in_its_sequence(host, strategy):
    model = host.bind(accumulate, [X], [Y], sequence=Sequences(strategy, states=[SUM]))
    answers = [
        step(host, model, 1, 5, start=True),
        step(host, model, 2, 7, start=True),
        step(host, model, 1, 1),
        step(host, model, 2, 1),
        step(host, model, 1, 1, end=True),
        step(host, model, 1, 3, start=True, end=True),
    ]

    assert answers == [{"y": [value]} for value in (5, 7, 6, 8, 7, 3)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("instances", [1, 3])
def test_many_sequences_at_a_time_keep_their_states(host, strategy, instances):
    sequence = Sequences(strategy, states=[SUM])
    model = host.bind([accumulate] * instances, [X], [Y], sequence=sequence)

    def run(number):
        sums = [
            step(host, model, number, number, start=not index, end=index == 9)["y"]
            for index in range(10)
        ]
        return [value for (value,) in sums]

    with ThreadPoolExecutor(16) as threads:
        totals = list(threads.map(run, range(1, 33)))

    assert totals == [[number * count for count in range(1, 11)] for number in range(1, 33)]


def test_controls_are_arguments(host):
    seen = []
    controls = [
        SequenceControl(ControlKind.START),
        SequenceControl(ControlKind.END, dtype=np.float32, false_true=(-1, 1)),
        SequenceControl(ControlKind.READY, dtype=np.int32),
        SequenceControl(ControlKind.CORRID, dtype=np.bytes_),
    ]

    @batch
    def look(x, **given):
        seen.append({name: (array.dtype.kind, array.tolist()) for name, array in given.items()})
        return {"y": x}

    model = host.bind(look, [X], [Y], sequence=Sequences(controls=controls))
    step(host, model, "abc", 0, start=True)
    step(host, model, "abc", 0, end=True)

    assert seen == [
        {"START": ("b", [[True]]), "END": ("f", [[-1.0]]), "READY": ("i", [[1]]),
         "CORRID": ("O", [[b"abc"]])},
        {"START": ("b", [[False]]), "END": ("f", [[1.0]]), "READY": ("i", [[1]]),
         "CORRID": ("O", [[b"abc"]])},
    ]  # fmt: skip
    status, text = step(host, model, 5, 0, start=True)
    assert status == 400
    assert f"'CORRID' data-type is 'UINT64', but model '{model}' expects 'BYTES'" in text
    metadata = host.get(f"/v2/models/{model}").json
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["x"]


@pytest.mark.parametrize("scheme", ["http", "grpc"])
@pytest.mark.parametrize("sequence_id", [5, "five"])
def test_our_client_sends_sequences(host, scheme, sequence_id):
    model = host.bind(accumulate, [X], [Y], sequence=Sequences(states=[SUM]))
    port = host.port if scheme == "http" else host.grpc_port
    sums = []
    with ModelClient(f"{scheme}://127.0.0.1:{port}", model) as client:
        for index in range(3):
            parameters = {
                "sequence_id": sequence_id,
                "sequence_start": index == 0,
                "sequence_end": index == 2,
            }
            result = client.infer_sample(np.array([2], np.float32), parameters=parameters)
            sums.append(result["y"].item())

    assert sums == [2, 4, 6]


def test_the_configuration_is_shown(host):
    model = host.bind(accumulate, [X], [Y], sequence=Sequences(OldestStrategy(3), states=[SUM]))
    shown = json.loads(host.get(f"/v2/models/{model}/config").body)["sequence_batching"]

    assert shown["oldest"]["max_candidate_sequences"] == 3
    assert shown["state"][0]["input_name"] == "sum_in"
