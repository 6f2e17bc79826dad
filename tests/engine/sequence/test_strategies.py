# SPDX-License-Identifier: Apache-2.0
"""What distinguishes the direct strategy from the oldest: which requests share a batch."""

from __future__ import annotations

import pytest

from pytriton.base.model_spec import SequenceSpec

START, END = 1, 2


def direct(**settings):
    return {"sequence": SequenceSpec(**settings), "batches": False}


def oldest(**settings):
    return {"sequence": SequenceSpec(**{"max_candidates": 4, **settings}), "batches": False}


def batches(instance):
    return [[each.request.fields.correlation_id for each in b.inferences] for b in instance.batches]


def start(scene, *ids, **fields):
    """Start sequences at the same time, and let their requests be answered."""
    for correlation_id in ids:
        scene.submit(correlation_id=correlation_id, flags=START, **fields)
    while scene.instance.running:
        scene.instance.finish()
        scene.loop.run()
    scene.instance.batches.clear()


def at_once(scene, *ids, flags=0, **fields):
    """Submit one request of each sequence in one iteration of the loop."""
    run, scene.loop.run = scene.loop.run, lambda: None
    for correlation_id in ids:
        scene.submit(correlation_id=correlation_id, flags=flags, **fields)
    scene.loop.run = run
    scene.loop.run()


def test_direct_fills_slots_without_a_request(scene):
    one = scene(**direct())
    start(one, 11, 12, 13)
    at_once(one, 13, 11)

    assert batches(one.instance) == [[11, 0, 13]]
    null = one.instance.batches[0].inferences[1].request
    assert (null.fields.flags, null.fields.id, null.rows) == (0, "", 1)


def test_direct_gives_new_sequences_the_lowest_slot(scene):
    one = scene(**direct())
    start(one, 11, 12, 13, 14)
    for ended in (13, 12, 14):
        at_once(one, ended, flags=END)
        one.instance.finish()
    at_once(one, 15, flags=START)

    assert batches(one.instance)[-1] == [0, 15]


def test_direct_counts_clients_requests_only(scene):
    one = scene(**direct())
    start(one, 11, 12)
    before = one.model.statistics.success_count
    at_once(one, 12)
    assert one.model.running_count == 1
    one.instance.finish()

    assert one.model.statistics.success_count == before + 1
    assert one.model.statistics.pending_count == 0
    assert one.model.running_count == 0
    sizes = [each.batch_size for each in one.model.statistics.batch_durations()]
    assert sizes == [1, 2]  # the size of a batch counts its empty slots


def test_direct_waits_for_enough_slots(scene):
    settings = direct(minimum_slot_utilization=0.5, max_queue_delay_us=1_000_000)
    one = scene(**settings)
    at_once(one, 11, flags=START)
    one.loop.advance(0.5)
    assert not one.instance.running
    at_once(one, 12, flags=START)
    assert batches(one.instance) == [[11, 12]]


def test_direct_waits_for_the_delay_at_most(scene):
    one = scene(**direct(minimum_slot_utilization=0.5, max_queue_delay_us=1_000_000))
    at_once(one, 11, flags=START)
    one.loop.advance(1.1)

    assert batches(one.instance) == [[11]]


@pytest.mark.parametrize(
    "settings", [{"minimum_slot_utilization": 1.0}, {"max_queue_delay_us": 1_000_000}]
)
def test_direct_does_not_wait_without_both_settings(scene, settings):
    one = scene(**direct(**settings))
    at_once(one, 11, flags=START)

    assert batches(one.instance) == [[11]]


def test_direct_reads_the_utilisation_as_a_short_float(scene):
    settings = direct(minimum_slot_utilization=0.30000001192092896, max_queue_delay_us=1_000_000)
    one = scene(**settings, max_batch_size=10)
    at_once(one, 11, 12, 13, flags=START)

    assert batches(one.instance) == [[11, 12, 13]]


def test_oldest_joins_requests_of_several_sequences(scene):
    one = scene(**oldest())
    start(one, 11, 12, 13)
    at_once(one, 13, 11)

    assert batches(one.instance) == [[13, 11]]


def test_oldest_waits_for_a_preferred_size(scene):
    one = scene(**oldest(preferred_batch_sizes=(2,), max_queue_delay_us=1_000_000))
    at_once(one, 11, flags=START)
    one.loop.advance(0.5)
    assert not one.instance.running
    at_once(one, 12, flags=START)
    assert batches(one.instance) == [[11, 12]]
    one.instance.finish()
    at_once(one, 11)
    one.loop.advance(1.1)
    assert batches(one.instance)[1:] == [[11]]


def test_oldest_runs_other_sequences_beside_a_batch(scene):
    one = scene(**oldest(), concurrency=2)
    at_once(one, 11, flags=START)
    at_once(one, 12, flags=START)

    assert batches(one.instance) == [[11], [12]]


def test_oldest_gives_new_sequences_to_the_instance_with_the_fewest(scene):
    one = scene(**oldest(), instances=2)
    at_once(one, 11, 12, 13, flags=START)

    assert [batches(each) for each in one.instances] == [[[11, 13]], [[12]]]
