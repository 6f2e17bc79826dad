# SPDX-License-Identifier: Apache-2.0
"""Sequences over HTTP, generate, streams and decoupled models; metadata and statistics."""

from __future__ import annotations

import json
from typing import Any

from tests.recorded_suite import Observation
from tests.sequence_differential.configs import CONTROLS, config
from tests.sequence_differential.rig import Rig
from tests.sequence_differential.scenario import Scenarios

scenario = Scenarios()
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
OLDEST_4 = "oldest { max_candidate_sequences: 4 }\n"


def infer(rig: Rig, value: int = 3, **parameters: Any) -> Observation:
    """Send one request over HTTP."""
    return rig.post(f"/v2/models/{rig.model}/infer", rig.infer_body(value, [1, 1], **parameters))


def generate(rig: Rig, ending: str = "", **members: Any) -> Observation:
    return rig.post(f"/v2/models/{rig.model}/generate{ending}", {"VALUE": 3, **members})


@scenario(config(controls=CONTROLS))
def http_from_start_to_end(rig: Rig) -> Observation:
    return [
        infer(rig, sequence_id=5, sequence_start=True),
        infer(rig, sequence_id=5),
        infer(rig, sequence_id="five", sequence_start=True),
        infer(rig, sequence_id=5, sequence_start=False, sequence_end=True),
        infer(rig, sequence_id=5),
        infer(rig, sequence_id="five", sequence_end=True),
        infer(rig, sequence_id="five", sequence_end=True),
        infer(rig, sequence_id=2**64 - 1, sequence_start=True, sequence_end=True),
        rig.batches(),
    ]


@scenario(config(controls=CONTROLS))
def http_ids_that_are_refused(rig: Rig) -> Observation:
    ids = [0, "", -1, 2**64, 1.5, True, None, [], {}, "i" * 129]
    return [infer(rig), *(infer(rig, sequence_id=it, sequence_start=True) for it in ids)]


@scenario(config(controls=CONTROLS))
def http_flags_that_are_refused(rig: Rig) -> Observation:
    return [
        [infer(rig, sequence_id=5, sequence_start=it) for it in (1, 0, "true", 1.0, None)],
        [infer(rig, sequence_id=5, sequence_end=it) for it in (1, 0, "true", 1.0, None)],
    ]


@scenario(config())
def control_inputs_that_clients_send(rig: Rig) -> Observation:
    start = {"name": "START", "datatype": "INT32", "shape": [1, 1], "data": [1]}
    body = rig.infer_body(3, [1, 1], sequence_id=3, sequence_start=True)
    more = {**body, "inputs": [*body["inputs"], start]}
    other = {**body, "inputs": [start]}
    return [rig.post(f"/v2/models/{rig.model}/infer", it) for it in (more, other)]


@scenario(config())
def checks_come_in_an_order(rig: Rig) -> Observation:
    path = f"/v2/models/{rig.model}/infer"
    wrong_dtype = rig.infer_body(3, [1, 1], sequence_id=3)
    wrong_dtype["inputs"][0]["datatype"] = "FP32"
    two = {"name": "VALUE", "datatype": "INT32", "shape": [2, 1], "data": [1, 2]}
    batch = {"inputs": [two], "parameters": {"sequence_id": 3}}
    without_id = {"inputs": [two]}
    unknown_output = {
        **rig.infer_body(3, [1, 1], sequence_id=3),
        "outputs": [{"name": "NOTHING"}],
    }
    return [rig.post(path, it) for it in (wrong_dtype, batch, without_id, unknown_output)]


@scenario(config(controls=CONTROLS))
def some_outputs_are_asked_for(rig: Rig) -> None:
    rig.call(1, 1, start=True, outputs=("SUM",)).wait()
    rig.call(1, 1, outputs=("INSTANCE",)).wait()
    rig.call(1, 1, end=True, outputs=("INSTANCE", "SUM")).wait()


@scenario(config(controls=CONTROLS))
def both_protocols_in_one_sequence(rig: Rig) -> Observation:
    rig.call(5, 1, start=True).wait()
    over_http = infer(rig, 10, sequence_id=5)
    rig.stream(5, 100).wait()
    ended = infer(rig, 1000, sequence_id=5, sequence_end=True)
    rig.call(5, 1).wait()
    return [over_http, ended, rig.answers()]


@scenario(config(controls=CONTROLS))
def generate_with_sequences(rig: Rig) -> Observation:
    return [
        generate(rig, sequence_id=5, sequence_start=True),
        generate(rig, sequence_id=5, sequence_end=True),
        generate(rig, sequence_id="five", sequence_start=True),
        generate(rig, parameters={"sequence_id": 5, "sequence_start": True}),
        generate(rig, "_stream", sequence_id=5, sequence_start=True),
    ]


@scenario(config(controls=CONTROLS))
def generate_without_an_id(rig: Rig) -> Observation:
    return [generate(rig), generate(rig, "_stream")]


# Streams


@scenario(config(controls=CONTROLS))
def sequences_share_a_stream(rig: Rig) -> None:
    for value in range(3):
        for sequence in (1, 2, "three"):
            rig.stream(sequence, value, start=value == 0, end=value == 2).wait()
    rig.stream(1, 1).wait()


@scenario(config(controls=CONTROLS))
def a_sequence_uses_two_streams(rig: Rig) -> None:
    rig.stream(1, 1, on="first", start=True).wait()
    rig.stream(1, 2, on="second").wait()
    rig.stream(1, 3, on="first", end=True).wait()
    rig.stream(1, 4, on="second").wait()


@scenario(config(controls=CONTROLS))
def errors_on_a_stream(rig: Rig) -> None:
    rig.stream(None, 1, start=True).wait()
    rig.stream(0, 1, start=True).wait()
    rig.stream(5, 1).wait()
    rig.stream(5, 1, start=True, shape=(2, 1)).wait()
    rig.stream(5, 1, start=True).wait()
    rig.stream(5, -1).wait()
    rig.stream(5, -2).wait()
    rig.stream(5, 1, end=True).wait()


# Decoupled models


@scenario(config(extra=DECOUPLED, controls=CONTROLS))
def a_decoupled_sequence(rig: Rig) -> None:
    rig.stream(1, 5, start=True).wait()
    rig.stream(1, -4).wait()
    rig.stream(1, -5).wait()
    rig.stream(1, -1).wait()
    rig.stream(1, -2).wait()
    rig.stream(1, 5, end=True).wait()
    rig.stream(1, 5).wait()


@scenario(config(OLDEST_4, extra=DECOUPLED, controls=CONTROLS))
def a_decoupled_sequence_of_candidates(rig: Rig) -> None:
    rig.stream(1, 5, start=True).wait()
    rig.stream(1, -4).wait()
    rig.stream(1, -5).wait()
    rig.stream(1, -1).wait()
    rig.stream(1, -2).wait()
    rig.stream(1, 5, end=True).wait()
    rig.stream(1, 5).wait()


@scenario(config(extra=DECOUPLED, controls=CONTROLS))
def decoupled_sequences_side_by_side(rig: Rig) -> None:
    for value in (5, -5, -4):
        for sequence in (1, 2):
            rig.stream(sequence, value, start=value == 5, end=value == -4).wait()


@scenario(config(extra=DECOUPLED, controls=CONTROLS))
def a_decoupled_sequence_without_a_stream(rig: Rig) -> Observation:
    rig.call(5, 1, start=True).wait()
    return [infer(rig, sequence_id=5, sequence_start=True), generate(rig), rig.answers()]


# What the server tells of sequence models


@scenario(config())
def metadata(rig: Rig) -> Observation:
    return [rig.get(f"/v2/models/{rig.model}"), config_of(rig)]


@scenario(config(OLDEST_4, idle_us=0))
def configuration_of_the_oldest_strategy(rig: Rig) -> Observation:
    return config_of(rig)


@scenario(config(OLDEST_4.replace("4 ", "4 max_queue_delay_microseconds: 100 "), batch=0))
def configuration_of_the_oldest_strategy_without_batches(rig: Rig) -> Observation:
    return config_of(rig)


@scenario(config("direct { minimum_slot_utilization: 0.5 max_queue_delay_microseconds: 5 }\n"))
def configuration_of_the_direct_strategy(rig: Rig) -> Observation:
    return config_of(rig)


@scenario(config(sequence=""))
def configuration_of_nothing(rig: Rig) -> Observation:
    return config_of(rig)


@scenario(config())
def statistics(rig: Rig) -> Observation:
    for sequence in (1, 2, 3):
        rig.call(sequence, 1, start=True).wait()
    rig.call(3, 1).wait()
    rig.call(2, -1).wait()
    rig.call(1, -2).wait()
    rig.call(1, 1, end=True).wait()
    rig.call(1, 1).wait()
    return counts(rig)


@scenario(config(OLDEST_4))
def statistics_of_the_oldest_strategy(rig: Rig) -> Observation:
    rig.hold(end=False)
    for sequence in (1, 2, 3):
        rig.queue(sequence, 1, start=True)
    rig.open_gate()
    for sent in rig.sent:
        sent.wait()
    rig.call(1, 1).wait()
    return counts(rig)


def config_of(rig: Rig) -> Observation:
    """The part of the configuration that is about sequences."""
    _, text = rig.get(f"/v2/models/{rig.model}/config")
    return json.loads(text)["sequence_batching"]


def counts(rig: Rig) -> Observation:
    """The numbers of requests and executions in the statistics and in the metrics."""
    families = ("request_success", "request_failure", "count", "exec_count")

    def read() -> Observation:
        _, text = rig.get(f"/v2/models/{rig.model}/stats")
        [stats] = json.loads(text)["model_stats"]
        sizes = {it["batch_size"]: it["compute_infer"]["count"] for it in stats["batch_stats"]}
        return {
            "inferences": stats["inference_count"],
            "executions": stats["execution_count"],
            "kinds": {name: it["count"] for name, it in stats["inference_stats"].items()},
            "batches": sizes,
            "metrics": {name: rig.metric(f"nv_inference_{name}") for name in families},
        }

    return rig.settled(read)
