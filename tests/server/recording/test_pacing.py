# SPDX-License-Identifier: Apache-2.0
"""How many requests a shadow may get, whatever it does and however much the server has to do."""

from __future__ import annotations

import pytest

from pytriton.serving.server.recording.pacing import (
    ASKING_SHARE,
    COPYING_BURST_NS,
    COPYING_SHARE,
    FIRST_WINDOW,
    PROBES,
    FollowedSequences,
    MeanCost,
    ShadowPace,
    ShadowProgress,
    TimeBudget,
)

SECOND_NS = 1_000_000_000


class ModelShadow:
    """A server and its shadow without threads: what is taken costs time, and ends later."""

    def __init__(self, cores=2, copy_ns=20_000, ask_ns=300_000, answers=True, window=64):
        self.pace = ShadowPace(cores, 0)
        self.copy_ns, self.ask_ns, self.answers, self.window = copy_ns, ask_ns, answers, window
        self.now_ns = 0
        self.taken = self.ended = self.asking_ns = self.copying_ns = 0

    def run(self, seconds, chunk=32, every_ns=2_000_000, size=0):
        """Offer chunks of requests; the shadow reports each 50 ms."""
        end_ns = self.now_ns + seconds * SECOND_NS
        report_ns = self.now_ns
        while self.now_ns < end_ns:
            allowed = self.pace.allows(chunk, self.now_ns, size)
            if allowed:
                self.pace.take(allowed)
                self.pace.spend(allowed * self.copy_ns, allowed)
                self.taken += allowed
                self.copying_ns += allowed * self.copy_ns
            if self.now_ns >= report_ns:
                self.report()
                report_ns += SECOND_NS // 20
            self.now_ns += every_ns

    def report(self):
        if self.answers:
            self.asking_ns += (self.taken - self.ended) * self.ask_ns
            self.ended = self.taken
        self.pace.progress = ShadowProgress(self.ended, self.asking_ns, 0, self.window)


def test_budget_is_a_share_of_time_with_a_burst():
    budget = TimeBudget(0.02, burst_ns=1_000_000)
    spent_ns = 0
    for now_ns in range(0, 10 * SECOND_NS, 1_000_000):
        if budget.left_ns(now_ns) >= 100_000:
            budget.spend(100_000)
            spent_ns += 100_000

    assert 0.19 < spent_ns / SECOND_NS < 0.21


def test_debt_of_a_budget_is_paid_back():
    budget = TimeBudget(0.5, burst_ns=1_000_000)
    budget.spend(5_000_000)

    assert budget.left_ns(0) == -4_000_000
    assert budget.left_ns(budget.wait_ns(4_000_000)) == 0
    assert budget.left_ns(SECOND_NS) == 1_000_000


def test_mean_follows_what_costs_are_now():
    cost = MeanCost(1_000_000)
    for _ in range(100):
        cost.add(20_000 * 10, 10)

    assert cost.mean_ns == pytest.approx(20_000, rel=0.1)


@pytest.mark.parametrize("copy_ns", [5_000, 20_000, 400_000])
def test_copies_take_no_more_than_their_share_of_time(copy_ns):
    shadow = ModelShadow(cores=64, copy_ns=copy_ns, ask_ns=0)
    shadow.run(20)

    assert shadow.taken > 0
    assert shadow.copying_ns <= COPYING_SHARE * 20 * SECOND_NS + 2 * COPYING_BURST_NS


@pytest.mark.parametrize("ask_ns", [100_000, 500_000, 5_000_000])
@pytest.mark.parametrize("cores", [1, 2, 8])
def test_asking_takes_no_more_than_its_share_of_all_cores(ask_ns, cores):
    shadow = ModelShadow(cores=cores, copy_ns=1_000, ask_ns=ask_ns)
    shadow.run(60)

    used = shadow.asking_ns / (60 * SECOND_NS * cores)
    assert 0.2 * ASKING_SHARE < used < 1.2 * ASKING_SHARE + 64 * ask_ns / (60 * SECOND_NS)


def test_time_of_the_thread_that_passes_on_counts_as_that_of_copies():
    pace = ShadowPace(2, 0)
    pace.progress = ShadowProgress(passing_ns=2 * COPYING_BURST_NS)

    assert pace.allows(1, 0) == 0
    assert pace.reason == "budget"


def test_server_that_is_slow_gets_what_it_answers():
    shadow = ModelShadow(answers=False)
    shadow.run(10)

    assert FIRST_WINDOW <= shadow.taken <= 64
    assert shadow.pace.reason == "slow"
    shadow.report()
    taken = shadow.taken
    shadow.answers = True
    shadow.report()
    shadow.run(1)
    assert shadow.taken > taken


def test_server_that_is_gone_gets_nothing_and_then_one():
    shadow = ModelShadow(answers=False, window=0)
    shadow.report()
    shadow.run(10)

    assert shadow.taken == 0
    assert shadow.pace.reason == "gone"
    shadow.window = PROBES
    shadow.report()
    shadow.run(10)
    assert shadow.taken == 1
    assert shadow.pace.reason == "gone"


def test_closed_pace_says_for_how_long_and_is_asked_with_one_comparison():
    pace = ShadowPace(2, 0)
    pace.take(FIRST_WINDOW)

    assert pace.allows(1, 0) == 0
    until_ns = pace.closed_until_ns
    assert until_ns > 0
    pace.progress = ShadowProgress(ended=FIRST_WINDOW)
    assert pace.allows(1, until_ns - 1) == 0
    assert pace.allows(1, until_ns) == 1


def test_request_that_is_not_passed_on_makes_room_for_another():
    pace = ShadowPace(2, 0)
    pace.take(FIRST_WINDOW)
    pace.give_up()

    assert pace.allows(5, 0) == 1


def test_bytes_count():
    small, large = ModelShadow(), ModelShadow(copy_ns=500_000, ask_ns=4_000_000)
    small.run(20, size=0)
    large.run(20, size=1 << 20)

    assert 0 < large.taken < small.taken / 5
    assert large.copying_ns <= COPYING_SHARE * 20 * SECOND_NS + 2 * COPYING_BURST_NS


def test_request_larger_than_a_burst_is_taken_when_all_time_was_saved():
    pace = ShadowPace(2, 0)
    size = 1 << 30

    assert pace.allows(1, 0, size) == 1
    pace.take()
    pace.spend(500_000_000, 1)
    assert pace.allows(1, SECOND_NS, size) == 0
    assert pace.is_overdrawn(SECOND_NS)
    pace.progress = ShadowProgress(ended=1)
    assert pace.allows(1, 60 * SECOND_NS, size) == 1


def test_sequences_are_followed_from_their_first_request_to_their_last():
    sequences = FollowedSequences()

    assert not sequences.has("m", 1, is_first=False)
    assert sequences.has("m", 1, is_first=True)
    sequences.follow("m", 1, is_last=False)
    assert sequences.has("m", 1, is_first=False)
    assert not sequences.has("n", 1, is_first=False)
    sequences.follow("m", 1, is_last=True)
    assert not sequences.has("m", 1, is_first=False)


def test_number_of_followed_sequences_is_bounded():
    sequences = FollowedSequences()
    for number in range(20_001):
        sequences.follow("m", number, is_last=False)

    assert not sequences.has("m", 0, is_first=False)
    assert sequences.has("m", 20_000, is_first=False)
    sequences.lose("m", 20_000)
    assert not sequences.has("m", 20_000, is_first=False)
    sequences.clear()
    assert not sequences.has("m", 19_999, is_first=False)
