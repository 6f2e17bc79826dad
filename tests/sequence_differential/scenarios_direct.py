# SPDX-License-Identifier: Apache-2.0
"""The direct strategy: slots, empty slots, the backlog, several instances."""

from __future__ import annotations

from tests.recorded_suite import Observation
from tests.sequence_differential.configs import CONTROLS, config
from tests.sequence_differential.rig import Rig
from tests.sequence_differential.scenario import Scenarios

scenario = Scenarios()
LONG_US = 600_000_000  # far longer than any scenario


@scenario(config())
def a_sequence_from_start_to_end(rig: Rig) -> None:
    rig.call(7, 1, start=True).wait()
    rig.call(7, 2).wait()
    rig.call(7, 3, end=True).wait()
    rig.call(7, 4).wait()


@scenario(config())
def a_sequence_of_one_request(rig: Rig) -> None:
    rig.call(7, 1, start=True, end=True).wait()
    rig.call(7, 2).wait()
    rig.call(7, 3, start=True, end=True).wait()


@scenario(config(controls=CONTROLS))
def requests_without_a_start(rig: Rig) -> None:
    rig.call(7, 1).wait()
    rig.call(8, 1, end=True).wait()
    rig.call("unknown", 1).wait()
    rig.call("unknown", 1, end=True).wait()


@scenario(config())
def requests_without_an_id(rig: Rig) -> None:
    rig.call(None, 1, start=True).wait()
    rig.call(0, 1, start=True).wait()
    rig.call("", 1, start=True).wait()
    rig.call(None, 1).wait()
    rig.call(0, 1, end=True).wait()


@scenario(config())
def a_batch_of_two(rig: Rig) -> None:
    rig.call(7, 1, start=True, shape=(2, 1)).wait()
    rig.call(0, 1, start=True, shape=(2, 1)).wait()
    rig.call(7, 1, shape=(2, 1)).wait()
    rig.call(7, 1, start=True).wait()
    rig.call(7, 1, shape=(2, 1)).wait()
    rig.call(7, 1).wait()


@scenario(config())
def a_start_in_a_running_sequence(rig: Rig) -> None:
    rig.call(7, 1, start=True).wait()
    rig.call(8, 5, start=True).wait()
    rig.call(7, 2).wait()
    rig.call(7, 10, start=True).wait()
    rig.call(7, 20).wait()
    rig.call(7, 100, start=True, end=True).wait()
    rig.call(7, 3).wait()
    rig.call(8, 5).wait()


@scenario(config())
def a_start_behind_queued_requests(rig: Rig) -> None:
    rig.call(7, 1, start=True).wait()
    rig.hold(end=False)
    rig.queue(7, 2)
    rig.queue(7, 10, start=True)
    rig.queue(7, 20)
    rig.open_gate()


@scenario(config(batch=1))
def a_start_behind_an_end(rig: Rig) -> None:
    rig.call(7, 1, start=True).wait()
    rig.close_gate()
    rig.call(7, 2)
    rig.executions(2)
    rig.queue(7, 3, end=True)
    rig.queue(7, 10, start=True)
    rig.queue(7, 20, end=True)
    rig.open_gate()


@scenario(config(batch=1))
def a_request_behind_a_queued_end(rig: Rig) -> None:
    rig.call(7, 1, start=True).wait()
    rig.close_gate()
    rig.call(7, 2)
    rig.executions(2)
    rig.queue(7, 3, end=True)
    rig.call(7, 4).wait()
    rig.open_gate()


@scenario(config())
def sequences_take_slots_in_order(rig: Rig) -> None:
    rig.hold(end=False)
    for sequence in (11, 12, 13):
        rig.queue(sequence, sequence, start=True)
    rig.open_gate()


@scenario(config())
def empty_slots_below_a_request(rig: Rig) -> None:
    for sequence in (1, 2, 3, 4):
        rig.call(sequence, 1, start=True).wait()
    for sequence in (4, 3, 2, 1):
        rig.call(sequence, 10).wait()
    rig.call(2, 100, end=True).wait()
    rig.call(3, 100).wait()
    rig.call(5, 1, start=True).wait()


@scenario(config())
def several_requests_with_an_empty_slot_between(rig: Rig) -> None:
    for sequence in (1, 2, 3, 4):
        rig.call(sequence, 1, start=True).wait()
    rig.close_gate()
    rig.call(4, 0)
    rig.executions(5)
    rig.queue(3, 5)
    rig.queue(1, 5)
    rig.open_gate()


@scenario(config())
def whole_sequences_at_once(rig: Rig) -> None:
    rig.hold(end=False)
    for value in range(3):
        for sequence in (1, 2, 3):
            rig.queue(sequence, value, start=value == 0, end=value == 2)
    rig.open_gate()


@scenario(config())
def sequences_of_different_lengths(rig: Rig) -> None:
    rig.hold(end=False)
    for sequence, length in ((1, 1), (2, 4), (3, 2)):
        for value in range(length):
            rig.queue(sequence, value, start=value == 0, end=value == length - 1)
    rig.open_gate()


@scenario(config(batch=2))
def the_backlog_is_served_in_order(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.call(2, 1, start=True).wait()
    for sequence in (3, 4, 5):
        rig.queue(sequence, sequence, start=True)
        rig.queue(sequence, 10, end=True)
    rig.call(2, 5, end=True).wait()
    rig.sent[-2].wait()
    rig.call(1, 5, end=True).wait()


@scenario(config(batch=1))
def requests_join_their_sequence_in_the_backlog(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.queue(2, 1, start=True)
    rig.queue(3, 5, start=True, end=True)
    rig.queue(2, 2)
    rig.queue(2, 3, end=True)
    rig.call(1, 2, end=True).wait()


@scenario(config(batch=1))
def errors_while_sequences_wait(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.queue(2, 1, start=True)
    rig.call(3, 1).wait()
    rig.call(2, 1, shape=(2, 1)).wait()
    rig.queue(2, 7, end=True)
    rig.call(2, 9).wait()
    rig.call(1, 2, end=True).wait()


@scenario(config(batch=1))
def a_start_of_a_sequence_that_waits(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.queue(2, 1, start=True)
    rig.queue(2, 2, start=True)
    rig.queue(2, 3, end=True)
    rig.call(1, 2, end=True).wait()


@scenario(config(batch=1))
def the_same_id_twice_in_the_backlog(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.queue(2, 1, start=True, end=True)
    rig.queue(2, 2, start=True, end=True)
    rig.queue(3, 3, start=True, end=True)
    rig.call(1, 2, end=True).wait()


@scenario(config(batch=2, count=2))
def slots_of_two_instances(rig: Rig) -> Observation:
    for sequence in range(1, 5):
        rig.call(sequence, sequence, start=True).wait()
    for sequence in range(1, 5):
        rig.call(sequence, 10, end=True).wait()
    return {"answers": rig.answers(), "executions": rig.batches(by_instance=True)}


@scenario(config(batch=0, count=2))
def instances_that_do_not_batch(rig: Rig) -> Observation:
    for sequence in (1, 2):
        rig.call(sequence, sequence, start=True, shape=(1,)).wait()
    rig.queue(3, 3, start=True, end=True, shape=(1,))
    rig.call(2, 10, shape=(1,)).wait()
    rig.call(2, 10, end=True, shape=(1,)).wait()
    rig.sent[2].wait()
    rig.call(1, 10, end=True, shape=(1,)).wait()
    return {"answers": rig.answers(), "executions": rig.batches(by_instance=True)}


@scenario(config(batch=1, count=3))
def a_sequence_stays_with_its_instance(rig: Rig) -> Observation:
    for sequence in (1, 2, 3):
        rig.call(sequence, 1, start=True).wait()
    for _ in range(3):
        for sequence in (3, 1, 2):
            rig.call(sequence, 1).wait()
    rig.call(2, 1, end=True).wait()
    rig.call(4, 1, start=True).wait()
    rig.call(1, 1, end=True).wait()
    rig.call(3, 1, end=True).wait()
    rig.call(5, 1, start=True).wait()
    rig.call(6, 1, start=True).wait()
    return {"answers": rig.answers(), "executions": rig.batches(by_instance=True)}


@scenario(config())
def the_slot_of_a_last_request_that_runs(rig: Rig) -> None:
    rig.hold(end=True)
    for sequence in (11, 12):
        rig.queue(sequence, sequence, start=True)
    rig.open_gate()


@scenario(config(dims="-1"))
def two_different_shapes(rig: Rig) -> None:
    rig.hold(end=False)
    for sequence, size in ((1, 3), (2, 2), (3, 2)):
        rig.queue(sequence, sequence, start=True, shape=(1, size))
    rig.open_gate()


@scenario(config(dims="-1"))
def three_different_shapes(rig: Rig) -> None:
    rig.hold(end=False)
    for sequence, size in ((1, 2), (2, 3), (3, 4)):
        rig.queue(sequence, 1, start=True, shape=(1, size))
        rig.queue(sequence, 2, end=True, shape=(1, 2))
    rig.open_gate()


@scenario(
    config("direct { minimum_slot_utilization: 0.75 max_queue_delay_microseconds: 600000000 }\n")
)
def enough_slots_are_used(rig: Rig) -> None:
    rig.queue(1, 1, start=True)
    rig.queue(2, 1, start=True)
    rig.call(3, 1, start=True).wait()
    rig.queue(3, 1, end=True)
    rig.queue(2, 1, end=True)
    rig.call(1, 1, end=True).wait()


@scenario(
    config("direct { minimum_slot_utilization: 0.75 max_queue_delay_microseconds: 1000000 }\n")
)
def too_few_slots_are_used_for_the_delay(rig: Rig) -> None:
    rig.queue(1, 1, start=True)
    rig.call(2, 1, start=True).wait()
    rig.sent[0].wait()
    rig.call(2, 1).wait()


@scenario(config("direct { minimum_slot_utilization: 1.0 }\n"))
def a_utilization_without_a_delay(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.call(2, 1, start=True).wait()


@scenario(config(f"direct {{ max_queue_delay_microseconds: {LONG_US} }}\n"))
def a_delay_without_a_utilization(rig: Rig) -> None:
    rig.call(1, 1, start=True).wait()
    rig.call(2, 1, start=True).wait()
