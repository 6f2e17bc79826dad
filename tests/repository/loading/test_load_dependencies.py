# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.serving.repository.loading.load_coordinator import LoadDependencies


@pytest.fixture
def waits():
    return LoadDependencies()


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


def test_model_cannot_wait_for_itself(waits):
    with pytest.raises(InvalidArgumentError) as caught:
        waits.add("a", "a").__enter__()

    assert caught.value.message == (
        "model 'a' cannot wait for 'a' to be loaded while it is being loaded itself, as that waits "
        "for its own end: a -> a"
    )
    assert len(waits) == 0


def test_models_cannot_wait_in_a_circle(waits, stack):
    stack.enter_context(waits.add("a", "x"))
    stack.enter_context(waits.add("a", "b"))
    stack.enter_context(waits.add("b", "c"))

    with pytest.raises(InvalidArgumentError, match=r"c -> a -> b -> c$"):
        stack.enter_context(waits.add("c", "a"))


def test_models_may_wait_for_the_same_one(waits, stack):
    stack.enter_context(waits.add("a", "c"))
    stack.enter_context(waits.add("b", "c"))
    stack.enter_context(waits.add("a", "b"))

    assert repr(waits) == "<LoadDependencies 3 loads>"


def test_instances_of_a_model_may_wait_for_the_same_one(waits, stack):
    with waits.add("a", "b"):
        stack.enter_context(waits.add("a", "b"))

    with pytest.raises(InvalidArgumentError):
        stack.enter_context(waits.add("b", "a"))


def test_wait_that_is_over_counts_no_more(waits, stack):
    with waits.add("a", "b"):
        pass
    stack.enter_context(waits.add("b", "a"))

    assert len(waits) == 1
