# SPDX-License-Identifier: Apache-2.0
"""Queues that principals share by their weights."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base.errors import ResourceExhaustedError, UnavailableError
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec, SequenceSpec
from pytriton.base.quotas import PrincipalQuotas
from pytriton.serving.engine.batcher import DelayingBatcher, FifoBatcher, GreedyBatcher
from pytriton.serving.engine.fairness import FairFifo, FairShares, over_share
from pytriton.serving.engine.quotas import ModelQuotas, Quotas
from pytriton.serving.engine.request_queue import RequestQueue
from tests.fakes import inference


class Shared:
    """A batcher that principals share, and what lost its place in it."""

    def __init__(self, batcher, **weights: float) -> None:
        self.batcher = batcher
        self.displaced: list = []
        batcher.share(FairShares(weights, self.displaced.append))

    def add(self, principal: str, count: int = 1, **fields) -> list:
        added = [inference(principal=principal, **fields) for _ in range(count)]
        for each in added:
            self.batcher.add(each, 0)
        return added

    def take(self) -> list:
        """The next batch."""
        batch = self.batcher.next(0)
        self.batcher.check_integrity()
        return batch or []

    def served(self, rows: int) -> Counter:
        """Who gets the next rows."""
        counts: Counter = Counter()
        while sum(counts.values()) < rows:
            for each in self.take():
                counts[each.request.fields.principal] += each.request.rows or 1
        return counts


def fifo(**weights) -> Shared:
    return Shared(FifoBatcher(), **weights)


def greedy(max_rows: int = 4, policy: QueuePolicySpec | None = None, **weights) -> Shared:
    spec = BatcherSpec(default_queue_policy=policy or QueuePolicySpec())
    return Shared(GreedyBatcher(spec, max_rows), **weights)


# Order


@pytest.mark.parametrize("make", [fifo, greedy])
def test_flood_does_not_delay_others_by_more_than_its_turn(make):
    queue = make()
    queue.add("flood", 1000)
    (single,) = queue.add("bob")
    served = [each for _ in range(2) for each in queue.take()]

    assert single in served


@pytest.mark.parametrize("make", [fifo, greedy])
def test_principals_get_rows_by_their_weights(make):
    queue = make(alice=1, bob=3)
    queue.add("alice", 400)
    queue.add("bob", 400)
    counts = queue.served(400)

    assert abs(counts["bob"] - 3 * counts["alice"]) <= 4


@given(
    weights=st.lists(st.sampled_from((0.5, 1, 2, 3)), min_size=2, max_size=5),
    rows=st.lists(st.integers(1, 4), min_size=5, max_size=5),
)
def test_shares_differ_by_no_more_than_a_request_while_all_wait(weights, rows):
    names = [f"p{number}" for number in range(len(weights))]
    queue = Shared(FifoBatcher(), **dict(zip(names, weights, strict=True)))
    for name, each in zip(names, rows, strict=False):
        queue.add(name, 200, rows=each)
    counts = queue.served(150)

    spent = [counts[name] / weight for name, weight in zip(names, weights, strict=True)]
    quantum = max(each / weight for each, weight in zip(rows, weights, strict=False))
    assert max(spent) - min(spent) <= 2 * quantum


def test_principal_saves_up_no_turns_while_it_is_idle():
    queue = fifo()
    queue.add("alice", 200)
    assert queue.served(100) == {"alice": 100}
    queue.add("bob", 100)

    counts = queue.served(50)
    assert abs(counts["alice"] - counts["bob"]) <= 1


def test_principal_does_not_pay_for_turns_that_nobody_wanted():
    queue = fifo()
    queue.add("alice", 500)
    queue.served(400)
    queue.add("bob", 100)
    queue.served(20)

    counts = queue.served(20)
    assert abs(counts["alice"] - counts["bob"]) <= 1


def test_requests_that_were_cancelled_cost_no_turns():
    queue = fifo()
    *cancelled, last = queue.add("alice", 100)
    queue.add("bob", 100)
    for each in cancelled:
        queue.batcher.remove(each)
    first = [queue.take()[0] for _ in range(3)]

    assert last in first


def test_requests_of_one_principal_keep_their_order():
    queue = greedy()
    alice, bob = queue.add("alice", 9), queue.add("bob", 7)
    served = [each for _ in range(4) for each in queue.take()]

    assert [each for each in served if each.request.fields.principal == "alice"] == alice
    assert [each for each in served if each.request.fields.principal == "bob"] == bob


def test_higher_priority_goes_first_whoever_sent_it():
    spec = BatcherSpec(priority_levels=2, default_priority_level=2)
    queue = Shared(GreedyBatcher(spec, 1))
    queue.add("alice", 3)
    first = queue.add("bob", 2, priority=1)

    assert [queue.take()[0] for _ in range(2)] == first


def test_batch_that_is_held_back_runs_with_all_principals():
    queue = Shared(DelayingBatcher(BatcherSpec(max_queue_delay_us=5), 4))
    alice, bob = queue.add("alice", 3), queue.add("bob", 1)
    assert set(queue.take()) == {*alice, *bob}


def test_requests_of_a_lost_instance_go_before_all_principals():
    queue = greedy(max_rows=2)
    queue.add("alice", 2)
    lost = queue.take()
    queue.add("bob", 4)
    for each in lost:
        each.is_put_back = True
    queue.batcher.put_back(lost, 0)

    assert queue.take() == lost


def test_queue_that_stops_being_shared_keeps_its_requests():
    queue = greedy(max_rows=8)
    queue.add("alice", 3)
    queue.add("bob", 2)
    queue.batcher.share(None)
    batch = queue.take()

    assert [each.request.fields.principal for each in batch].count("alice") == 3
    assert len(batch) == 5


def test_known_principals_do_not_grow_without_bound():
    shares = FairShares({}, lambda _: None)
    queue = FairFifo(shares)
    for number in range(10_000):
        each = inference(principal=f"p{number}")
        queue[each] = 0
        shares.charge(f"p{number}", 1)
        del queue[each]

    assert len(shares._spent) < 1000


@given(
    st.lists(
        st.tuples(st.sampled_from(("add", "take", "remove", "back")), st.sampled_from("abc")),
        max_size=80,
    )
)
def test_shared_queue_has_each_request_in_one_place(steps):
    queue = greedy(max_rows=3)
    waiting: list = []
    for step, principal in steps:
        if step == "add":
            waiting += queue.add(principal, 2)
        elif step == "remove" and waiting:
            assert queue.batcher.remove(waiting.pop(len(waiting) // 2))
        elif step == "take":
            taken = queue.take()
            waiting = [each for each in waiting if each not in taken]
        elif step == "back" and waiting:
            taken = queue.take()
            for each in taken:
                each.is_put_back = True
            queue.batcher.put_back(taken, 0)
        queue.batcher.check_integrity()

        assert len(queue.batcher) == len(waiting)
    assert sorted(map(id, queue.batcher.take_all())) == sorted(map(id, waiting))


# Full queues


def full(limit: int = 4, **weights) -> Shared:
    return greedy(policy=QueuePolicySpec(max_queue_size=limit), **weights)


def test_newcomer_takes_the_newest_place_of_who_has_too_many():
    queue = full()
    flood = queue.add("flood", 4)
    (single,) = queue.add("bob")

    assert queue.displaced == [flood[3]]
    assert single in queue.take()


def test_newcomer_above_its_share_is_refused_as_before():
    queue = full()
    queue.add("flood", 4)
    queue.add("bob", 2)

    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        queue.add("bob")
    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        queue.add("flood")
    assert len(queue.displaced) == 2


def test_places_of_a_full_queue_follow_weights():
    queue = full(8, alice=3)
    queue.add("flood", 8)
    queue.add("alice", 6)

    with pytest.raises(UnavailableError):
        queue.add("alice")
    assert len(queue.displaced) == 6


def test_requests_with_deadlines_can_be_displaced():
    policy = QueuePolicySpec(max_queue_size=2, default_timeout_us=5)
    queue = greedy(policy=policy)
    queue.add("flood", 2)
    queue.add("bob")

    queue.batcher.check_integrity()
    assert len(queue.batcher) == 2
    assert len(queue.displaced) == 1


@given(
    counts=st.dictionaries(st.sampled_from("abcde"), st.integers(1, 20), max_size=5),
    newcomer=st.sampled_from("abcdef"),
)
def test_displacing_never_brings_the_loser_below_its_share(counts, newcomer):
    limit = sum(counts.values())
    loser = over_share(counts, newcomer, limit, lambda _: 1.0)

    if loser is not None:
        share = max(1.0, limit / len({*counts, newcomer}))
        assert loser != newcomer
        assert counts[loser] > share
        assert counts.get(newcomer, 0) + 1 <= share


def test_queue_without_shares_displaces_nobody():
    queue = RequestQueue(BatcherSpec(default_queue_policy=QueuePolicySpec(max_queue_size=1)))
    queue.add(inference(principal="flood"), 0)

    with pytest.raises(UnavailableError):
        queue.add(inference(principal="bob"), 0)


# Models


def share(model, **weights: float) -> ModelQuotas:
    """Let principals share a model."""
    principals = {name: PrincipalQuotas(weight=weight) for name, weight in weights.items()}
    quotas = ModelQuotas("m", 1, model.statistics)
    quotas.apply(Quotas(principals))
    model.set_quotas(quotas)
    return quotas


def test_displaced_request_is_answered_with_when_to_try_again(scene):
    policy = QueuePolicySpec(max_queue_size=2)
    made = scene(max_batch_size=1, batcher=BatcherSpec(default_queue_policy=policy))
    share(made.model, flood=1, bob=1)
    made.submit(1, principal="flood")  # it runs
    made.submit(2, principal="flood")
    made.submit(1, principal="bob")

    (error,) = made.sink(2).errors
    assert isinstance(error, ResourceExhaustedError)
    assert error.retry_after_s == 1
    assert "principal 'flood' had more than its share of the full queue" in str(error)
    while made.instance.running:
        made.instance.finish()
        made.loop.run()
    made.check_all_answered()
    made.model.check_integrity()


def test_sequences_of_principals_take_turns_at_free_slots(scene):
    made = scene(max_batch_size=1, sequence=SequenceSpec())
    share(made.model, flood=1, bob=1)
    for number in range(1, 5):
        made.submit(1, principal="flood", correlation_id=number, flags=3)
    made.submit(1, principal="bob", correlation_id=9, flags=3)
    for _ in range(2):
        made.instance.finish()
        made.loop.run()

    run = [batch.inferences[0].request.fields.principal for batch in made.instance.batches]
    assert "bob" in run[:3]
