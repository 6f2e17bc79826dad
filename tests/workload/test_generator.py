# SPDX-License-Identifier: Apache-2.0
"""Populations of clients: the same from the same seed, and of everything that a profile has."""

from __future__ import annotations

import random

import pytest

from tests.workload import models
from tests.workload.calls import ACCEPTED_CODINGS, INFERENCES, POLITE, Conduct, Kind, Port
from tests.workload.generator import HABITS, PROFILES, Generator, Profile


class OnlyRandom:
    """A generator that has no method but `random`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random


def plans_of(profile, seed=1, clients=40, calls=30, served=None):
    served = served or models.repository_models()
    return Generator(OnlyRandom(seed), profile, served).plans(clients, calls)


def as_text(plans):
    return [repr(plan) for plan in plans]


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_same_seed_makes_the_same_clients(profile):
    assert as_text(plans_of(profile)) == as_text(plans_of(profile))
    assert as_text(plans_of(profile)) != as_text(plans_of(profile, seed=2))


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_calls_have_numbers_of_their_own_and_what_their_model_needs(profile):
    calls = [call for plan in plans_of(profile) for call in plan.calls]

    assert len({call.number for call in calls}) == len(calls)
    for call in calls:
        assert (call.lane is not None) == (call.kind is Kind.STREAM and call.port is Port.GRPC)
        if call.kind in INFERENCES and call.sequence is None:
            models.ANSWERS[call.model](call)
        if call.kind is Kind.INVALID:
            assert call.payload or call.text
            assert call.conduct is POLITE


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_clients_use_only_models_that_are_served(profile):
    served = [model.name for model in models.bound_models()]
    used = {call.model for plan in plans_of(profile, served=served) for call in plan.calls}

    assert used - {""} <= set(served)


@pytest.mark.parametrize("habit", sorted(HABITS))
def test_every_habit_makes_calls(habit):
    (plan,) = plans_of(Profile({habit: 1}), clients=1, calls=20)

    assert len(plan.calls) >= 20


def test_lanes_and_sequences_are_whole():
    calls = [call for plan in plans_of("mixed") for call in plan.calls if call.sequence]
    by_key: dict = {}
    for call in calls:
        by_key.setdefault(call.sequence.id, []).append(call)

    for steps in by_key.values():
        places = [step.sequence for step in steps]
        assert [place.index for place in places] == list(range(len(steps)))
        assert [place.is_start for place in places] == [True] + [False] * (len(steps) - 1)
        assert [place.is_end for place in places] == [False] * (len(steps) - 1) + [True]
        assert [step.closes_lane for step in steps[:-1]] == [False] * (len(steps) - 1)


def test_hostile_clients_leave_in_every_way():
    calls = [call for plan in plans_of("hostile", clients=100) for call in plan.calls]
    rude = [call.conduct for call in calls if call.conduct.is_rude]
    fields = ("cancel_after_s", "cut_after_sent_bytes", "cut_after_received_bytes")

    for field in fields:
        assert any(getattr(conduct, field) is not None for conduct in rude)
    assert len({conduct.cut for conduct in rude}) == 3
    assert any(call.conduct.piece_bytes for call in calls)
    assert any(call.conduct.read_pause_s for call in calls)
    assert {call.kind for call in calls} >= {Kind.INVALID, Kind.INFER, Kind.STREAM, Kind.EVENTS}


def test_clients_of_regions_use_them_in_every_way():
    calls = [call for plan in plans_of("regions", clients=200) for call in plan.calls]
    used = [call for call in calls if call.places]
    acts = {(act.size is None, act.only_makes) for call in calls for act in call.acts}

    assert {call.kind for call in calls} >= {Kind.REGISTER, Kind.UNREGISTER, Kind.REGIONS}
    assert {len(call.output_places()) for call in used} == {0, 1}
    assert {len(call.places) for call in used} == {1, 2}
    assert {call.port for call in used} == {Port.HTTP, Port.GRPC}
    assert any(call.kind is Kind.STREAM and call.model == "stream" for call in used)
    assert any(place.byte_size > 256 << 10 for call in used for place in call.places.values())
    assert acts == {(False, True), (False, False), (True, True)}


def test_calls_have_parts_of_shared_memory_of_their_own():
    calls = [call for plan in plans_of("regions", clients=100) for call in plan.calls]
    taken: dict = {}
    for call in calls:
        for place in call.places.values():
            if place.offset < 1 << 40 and place.byte_size < 1 << 40:
                taken.setdefault(place.region, []).append((place.offset, place.byte_size))

    for places in taken.values():
        places.sort()
        ends = [offset + size for offset, size in places]
        assert all(offset >= end for end, (offset, _) in zip(ends, places[1:], strict=False))


def test_clients_of_formats_compress_and_ask_for_compression():
    calls = [call for plan in plans_of("formats", clients=100) for call in plan.calls]
    compressed = {(call.port, call.coding) for call in calls if call.coding}
    ids = [call.sequence.id for call in calls if call.sequence]

    assert compressed == {(port, c) for port in (Port.HTTP, Port.GRPC) for c in ("gzip", "deflate")}
    assert {call.accepts for call in calls if call.port is Port.HTTP} == set(ACCEPTED_CODINGS)
    assert {call.kind for call in calls} >= {Kind.COMPLETION, Kind.COMPLETION_STREAM, Kind.INVALID}
    assert all(isinstance(each, str) for each in ids)


def test_quiet_clients_behave_well():
    calls = [call for plan in plans_of("quiet") for call in plan.calls]

    assert {call.conduct for call in calls} == {Conduct()}


def test_repository_has_the_models_that_are_known(tmp_path):
    names = models.write_repository(tmp_path)
    known = {*models.ANSWERS, *models.SEQUENCE_MODELS, models.TEXT_SEQUENCE_MODEL}

    assert set(names) == known
    assert {model.name for model in models.bound_models()} == known - {"pipeline", "caller"}
    assert all((tmp_path / name / "1").is_dir() for name in names)


def test_configurations_have_the_numbers_that_the_oracle_knows():
    slow = (models.REPOSITORY / "slow" / "config.pbtxt").read_text()
    assert f"max_queue_size: {models.SLOW_QUEUE_SIZE}" in slow
    assert f"default_timeout_microseconds: {models.SLOW_TIMEOUT_US}" in slow
    assert f"priority_levels: {models.SLOW_PRIORITIES}" in slow
    for name in (*models.SEQUENCE_MODELS, models.TEXT_SEQUENCE_MODEL):
        text = (models.REPOSITORY / name / "config.pbtxt").read_text()
        assert f"max_sequence_idle_microseconds: {models.SEQUENCE_IDLE_US}" in text
