# SPDX-License-Identifier: Apache-2.0
"""The oldest strategy: candidates, batches of several sequences, preferred sizes and delays."""

from __future__ import annotations

from tests.recorded_suite import Observation
from tests.sequence_differential.configs import config
from tests.sequence_differential.rig import Rig
from tests.sequence_differential.scenario import Scenarios

scenario = Scenarios()


def oldest(candidates: int, extra: str = "") -> str:
    return f"oldest {{ max_candidate_sequences: {candidates} {extra} }}\n"


@scenario(config(oldest(4)))
def oldest_from_start_to_end(rig: Rig) -> None:
    rig.call(7, 1, start=True).wait()
    rig.call(8, 1, start=True).wait()
    rig.call(7, 2).wait()
    rig.call(8, 2, end=True).wait()
    rig.call(7, 3, end=True).wait()
    rig.call(7, 4).wait()


@scenario(config(oldest(4)))
def oldest_refuses(rig: Rig) -> None:
    rig.call(None, 1, start=True).wait()
    rig.call(0, 1, start=True).wait()
    rig.call(7, 1).wait()
    rig.call(7, 1, end=True).wait()
    rig.call(7, 1, start=True, shape=(2, 1)).wait()


@scenario(config(oldest(4)))
def oldest_restarts(rig: Rig) -> None:
    rig.call(7, 1, start=True).wait()
    rig.call(7, 2).wait()
    rig.call(7, 10, start=True).wait()
    rig.call(7, 20, end=True).wait()
    rig.call(7, 100, start=True, end=True).wait()
    rig.call(7, 1).wait()


@scenario(config(oldest(8)))
def oldest_batches_in_the_order_of_arrival(rig: Rig) -> None:
    rig.hold(end=False)
    for sequence in (14, 11, 13, 12, 16, 15):
        rig.queue(sequence, sequence, start=True)
    rig.open_gate()


@scenario(config(oldest(8)))
def oldest_batches_one_request_of_a_sequence(rig: Rig) -> Observation:
    rig.hold(end=False)
    for sequence in (1, 2):
        for value in range(3):
            rig.queue(sequence, value, start=value == 0, end=value == 2)
    rig.open_gate()
    answers = rig.answers()
    return {"answers": answers, "most": max(map(len, rig.batches())) - 1, "orders": orders(rig)}


@scenario(config(oldest(2)))
def oldest_has_a_backlog(rig: Rig) -> Observation:
    rig.call(1, 1, start=True).wait()
    rig.call(2, 1, start=True).wait()
    for sequence in (3, 4):
        rig.queue(sequence, 1, start=True)
        rig.queue(sequence, 2, end=True)
    rig.call(2, 5).wait()
    rig.call(1, 5, end=True).wait()
    answers = {sent.name: sent.wait() for sent in rig.sent}
    rig.call(2, 5, end=True).wait()
    return {"answers": answers, "executions": rig.batches()}


@scenario(config(oldest(1), batch=1))
def oldest_backlog_keeps_the_order(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    for sequence in (4, 2, 3):
        rig.queue(sequence, 1, start=True)
        rig.queue(sequence, 2, end=True)
    rig.call(1, 5, end=True).wait()


@scenario(config(oldest(8, "preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 600000000")))
def oldest_prefers_a_size(rig: Rig) -> None:
    rig.queue(1, 1, start=True)
    rig.queue(2, 1, start=True)
    rig.call(3, 1, start=True).wait()
    rig.queue(3, 1, end=True)
    rig.queue(1, 1, end=True)
    rig.call(2, 1, end=True).wait()


@scenario(config(oldest(8, "preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 1000000")))
def oldest_delays(rig: Rig) -> None:
    rig.queue(1, 1, start=True)
    rig.call(2, 1, start=True).wait()
    rig.sent[0].wait()
    rig.call(2, 1).wait()


@scenario(config(oldest(8, "max_queue_delay_microseconds: 600000000")))
def oldest_prefers_full_batches(rig: Rig) -> None:
    for sequence in (1, 2, 3):
        rig.queue(sequence, 1, start=True)
    rig.call(4, 1, start=True).wait()


@scenario(config(oldest(8, "preferred_batch_size: [ 2 ]")))
def oldest_does_not_wait_without_a_delay(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.call(1, 1).wait()


@scenario(config(oldest(4), batch=0))
def oldest_without_batches(rig: Rig) -> None:
    rig.hold(end=False, shape=(1,))
    for sequence in (1, 2, 3):
        rig.queue(sequence, 1, start=True, shape=(1,))
    rig.open_gate()


@scenario(config(oldest(2), batch=2, count=2))
def oldest_with_two_instances(rig: Rig) -> Observation:
    for sequence in (1, 2, 3, 4):
        rig.call(sequence, 1, start=True).wait()
    rig.queue(5, 1, start=True)
    for _ in range(2):
        for sequence in (4, 3, 2, 1):
            rig.call(sequence, 1).wait()
    rig.call(2, 1, end=True).wait()
    rig.call(5, 1, end=True).wait()
    return {"answers": rig.answers(), "executions": rig.batches(by_instance=True)}


@scenario(config(oldest(8), dims="-1"))
def oldest_with_different_shapes(rig: Rig) -> None:
    rig.hold(end=False)
    for sequence, size in ((1, 2), (2, 2), (3, 3), (4, 2)):
        rig.queue(sequence, 1, start=True, shape=(1, size))
    rig.open_gate()


@scenario(config(oldest(4), batch=1))
def oldest_with_sequences_of_one_request(rig: Rig) -> None:
    rig.hold(end=False)
    for sequence in (1, 2, 3):
        rig.queue(sequence, 1, start=True, end=True)
    rig.open_gate()


@scenario(config(oldest(4, "preserve_ordering: true")))
def oldest_keeps_the_order_of_answers(rig: Rig) -> None:
    rig.hold(end=False)
    for sequence in (1, 2, 3):
        rig.queue(sequence, 1, start=True)
    rig.open_gate()
    for sent in rig.sent:
        sent.wait()
    for sequence in (3, 2, 1):
        rig.call(sequence, 2, end=True).wait()


@scenario(config("oldest { }\n"))
def oldest_without_a_number_of_candidates(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.call(1, 1, end=True).wait()


@scenario(config(oldest(4)))
def oldest_failures(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.call(1, -1).wait()
    rig.call(1, 2).wait()
    rig.call(1, -2).wait()
    rig.call(1, 3, end=True).wait()
    rig.call(1, 3).wait()


def orders(rig: Rig) -> Observation:
    """The requests of each sequence in the order of their execution."""
    seen: dict[str, list[str]] = {}
    for entry in rig.journal():
        for request in entry["batch"]:
            seen.setdefault(str(request["corrid"]), []).append(request["id"])
    return seen
