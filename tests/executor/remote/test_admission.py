# SPDX-License-Identifier: Apache-2.0
"""Which processes may be an instance: only those that the starter told about, each once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.runtime.executor.remote.instance_port import ExpectedStart, StartState
from pytriton.runtime.executor.remote.starter import ProcessPlace

HERE = ProcessPlace("one", "n1", 10)
OTHER = ProcessPlace("two", "n2", 20)


def test_process_that_the_starter_told_about_is_admitted():
    start = ExpectedStart("m_0_0-1")
    assert start.place([HERE]) == []

    assert start.claim(0, "n1", 10).is_admitted
    assert start.state is StartState.COMPLETE


def test_claim_waits_until_the_starter_tells():
    start = ExpectedStart("m_0_0-1")
    claim = start.claim(0, "n1", 10)
    assert claim.is_admitted is None

    assert start.place([HERE]) == [claim]
    assert claim.is_admitted


@pytest.mark.parametrize("node, pid", [("n2", 10), ("n1", 11), ("", 0)])
def test_another_process_is_refused_even_if_it_was_first(node, pid):
    start = ExpectedStart("m_0_0-1")
    early = start.claim(0, node, pid)
    right = start.claim(0, "n1", 10)
    start.place([HERE])
    late = start.claim(0, node, pid)

    assert early.is_admitted is late.is_admitted is False
    assert "process 10 of node n1" in early.refusal
    assert right.is_admitted


def test_process_is_admitted_once():
    start = ExpectedStart("m_0_0-1")
    start.place([HERE])
    start.claim(0, "n1", 10)
    again = start.claim(0, "n1", 10)

    assert again.is_admitted is False
    assert again.refusal == "process 10 of 'm_0_0-1' was connected before"


@pytest.mark.parametrize("is_placed", [False, True])
def test_revoked_start_admits_nobody(is_placed):
    start = ExpectedStart("m_0_0-1")
    if is_placed:
        start.place([HERE])
    waiting = [] if is_placed else [start.claim(0, "n1", 10)]

    assert start.revoke() == waiting
    assert all(claim.is_admitted is False for claim in waiting)
    late = start.claim(0, "n1", 10)
    assert late.refusal == "'m_0_0-1' is not expected any more"
    assert start.place([HERE]) == []
    assert start.state is StartState.REVOKED


def test_every_rank_of_a_group_is_admitted_at_its_own_place():
    start = ExpectedStart("g-1", 2)
    swapped = start.claim(1, "n1", 10)
    first = start.claim(0, "n1", 10)
    start.place([HERE, OTHER])
    assert start.state is StartState.PLACED
    second = start.claim(1, "n2", 20)

    assert (first.is_admitted, second.is_admitted, swapped.is_admitted) == (True, True, False)
    assert start.state is StartState.COMPLETE


@pytest.mark.parametrize("rank", [-1, 1])
def test_rank_outside_of_the_group_is_refused_at_once(rank):
    claim = ExpectedStart("m_0_0-1").claim(rank, "n1", 10)

    assert claim.refusal == f"'m_0_0-1' has 1 processes, so none of rank {rank}"


def test_claim_of_a_process_that_went_is_forgotten():
    start = ExpectedStart("m_0_0-1")
    gone = start.claim(0, "n1", 10)
    start.withdraw(gone)
    start.place([HERE])

    assert gone.is_admitted is None
    assert start.claim(0, "n1", 10).is_admitted


def test_places_of_another_number_of_processes_are_refused():
    with pytest.raises(ValueError, match="expected the places of 2 processes of 'g', got 1"):
        ExpectedStart("g", 2).place([HERE])


places = st.tuples(st.sampled_from(["n1", "n2"]), st.integers(1, 3))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(-1, 2), places),
        st.tuples(st.just("place")),
        st.tuples(st.just("revoke")),
    )
)


@given(steps)
def test_no_place_is_given_twice_and_none_to_a_stranger(order):
    start = ExpectedStart("g", 2)
    told = [ProcessPlace("a", "n1", 1), ProcessPlace("b", "n2", 2)]
    claims = []
    for step in order:
        if step[0] == "claim":
            _, rank, (node, pid) = step
            claims.append((start.claim(rank, node, pid), (rank, node, pid), start.state))
        elif step[0] == "place":
            start.place(told)
        else:
            start.revoke()
        start.check_integrity()

    admitted = [where for claim, where, _ in claims if claim.is_admitted]
    assert len(set(admitted)) == len(admitted)
    assert set(admitted) <= {(0, "n1", 1), (1, "n2", 2)}
    decided = start.state is not StartState.EXPECTED
    for claim, (rank, _, _), state in claims:
        if decided or not 0 <= rank < 2:
            assert (claim.is_admitted is None) is False
        if state is StartState.REVOKED:
            assert not claim.is_admitted
