# SPDX-License-Identifier: Apache-2.0
"""Schedules are made shorter, and written as tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.simulation.scenario import Kept, Length, Result, Scenario, make_scenario
from tests.simulation.shrink import Shrinker, kind_of
from tests.simulation.story import regression_test

_SEED = 2  # of the profile "mixed": many clients, front ends, no faults


class _FakeShrinker(Shrinker):
    """Runs nothing: a function says which scenarios have a finding."""

    def __init__(self, seed: int, find: Callable[[Scenario], list[str]], max_runs: int = 500):
        super().__init__(seed, "mixed", max_runs=max_runs)
        self._find = find

    def _make_result(self, kept: Kept) -> Result:
        scenario = make_scenario(self._seed, self._profile, kept)
        return Result(scenario, self._find(scenario), "", 0, 0.0, 0.0, [])


def _numbers(scenario: Scenario) -> set[int]:
    return {call.number for client in scenario.clients for call in client.calls}


def _needing(*numbers: int) -> Callable[[Scenario], list[str]]:
    """A project that fails if these calls come together."""

    def find(scenario: Scenario) -> list[str]:
        return [f"{len(_numbers(scenario))}.5: 1 call failed"] * (
            _numbers(scenario) >= set(numbers)
        )

    return find


def test_kind_of_finding_has_no_numbers_times_and_calls():
    first = "1092.118880: step 3 has the sum 0b101, after [1, 2] (a worker was killed) [call 7 (x)]"
    second = "7.5: step 12 has the sum 0b1, after [4] (there was no fault)"

    assert kind_of(first) == kind_of(second) == "step N has the sum N, after [N]"


def test_kinds_of_other_sentences_differ():
    assert kind_of("a call never ended") != kind_of("a call ended 2 times")


def test_shrinker_keeps_calls_that_are_needed():
    whole = make_scenario(_SEED)
    wanted = (whole.clients[0].calls[3].number, whole.clients[-1].calls[5].number)
    shrunk = _FakeShrinker(_SEED, _needing(*wanted)).shrink()

    assert shrunk is not None
    assert _numbers(shrunk.result.scenario) == set(wanted)
    assert len(shrunk.result.scenario.clients) == 2


def test_shrinker_leaves_out_faults_and_simplifies_what_is_left():
    whole = make_scenario(3)
    shrunk = _FakeShrinker(3, _needing(whole.clients[1].calls[0].number)).shrink()

    assert whole.faults
    assert shrunk is not None
    assert not shrunk.result.scenario.faults
    assert not shrunk.result.scenario.front_ends
    assert not shrunk.result.scenario.split_share
    assert not shrunk.result.scenario.pause_share


def test_shrinker_keeps_faults_that_are_needed():
    whole = make_scenario(3)
    wanted = whole.faults[2]
    shrunk = _FakeShrinker(3, lambda scenario: ["x"] * (wanted in scenario.faults)).shrink()

    assert shrunk is not None
    assert shrunk.result.scenario.faults == [wanted]
    assert not shrunk.result.scenario.clients


def test_shrinker_keeps_first_kind_of_finding():
    whole = make_scenario(_SEED)
    number = whole.clients[0].calls[0].number

    def find(scenario: Scenario) -> list[str]:
        return ["the first"] if number in _numbers(scenario) else ["another one"]

    shrunk = _FakeShrinker(_SEED, find).shrink()

    assert shrunk is not None
    assert shrunk.result.findings == ["the first"]


def test_shrinker_stops_at_its_number_of_runs():
    number = make_scenario(_SEED).clients[0].calls[0].number
    shrunk = _FakeShrinker(_SEED, _needing(number), max_runs=3).shrink()

    assert shrunk is not None
    assert shrunk.runs == 3
    assert number in _numbers(shrunk.result.scenario)


def test_seed_without_finding_is_not_shrunk():
    assert _FakeShrinker(_SEED, lambda _: []).shrink() is None


def test_regression_test_names_the_same_schedule():
    number = make_scenario(_SEED).clients[0].calls[0].number
    shrunk = _FakeShrinker(_SEED, _needing(number)).shrink()
    assert shrunk is not None
    seen: list[object] = []

    def check_seed(profile, seed, kept, *, calls, plan):
        scenario = make_scenario(seed, profile, kept)
        seen.extend((scenario.call_count == calls, scenario.fingerprint == plan))

    names: dict[str, object] = {"Kept": Kept, "Length": Length}
    exec(regression_test(shrunk.result), names)
    names["test_mixed_2_call_failed"](check_seed)

    assert seen == [True, True]


def test_fingerprint_is_another_if_a_call_is():
    scenario = make_scenario(_SEED)
    before = scenario.fingerprint
    call = scenario.clients[0].calls[0]
    scenario.clients[0].calls[0] = dataclasses.replace(call, pause_s=call.pause_s + 1.0)

    assert scenario.fingerprint != before
