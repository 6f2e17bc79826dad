# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio

import pytest
from c_python_backend_utils import ResponseIterator
from triton_python_backend_utils import InferenceResponse

from tests.pb_utils.fakes import FakeCall

FIVE = [InferenceResponse() for _ in range(5)]


@pytest.fixture(params=[True, False], ids=["last-is-marked", "end-comes-alone"])
def five(request):
    return ResponseIterator(FakeCall(FIVE, last_is_marked=request.param))


def test_first_response_is_there_before_anybody_asks():
    call = FakeCall([FIVE[0], FIVE[1]])
    iterator = ResponseIterator(call)

    assert len(call._responses) == 1
    assert next(iterator) is FIVE[0]
    assert len(call._responses) == 1
    assert list(iterator) == FIVE[1:2]


def test_loop_goes_on_after_next(five):
    assert next(five) is FIVE[0]
    assert list(five) == FIVE[1:]


def test_loops_over_a_finished_iterator_begin_anew(five):
    assert list(five) == FIVE
    assert list(five) == FIVE
    assert list(five) == FIVE


def test_loop_that_was_left_is_continued(five):
    list(five)
    for number, response in enumerate(five):
        assert response is FIVE[number]
        if number == 1:
            break

    assert next(five) is FIVE[2]
    assert list(five) == FIVE[3:]


def test_next_after_the_last_response_stops(five):
    assert [next(five) for _ in FIVE] == FIVE
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(five)
    assert list(five) == FIVE
    assert list(ResponseIterator(FakeCall([]))) == []


def test_iterator_has_no_length(five):
    with pytest.raises(TypeError):
        len(five)


@pytest.mark.parametrize("is_finished", [False, True])
def test_cancel_and_end_of_an_iterator_reach_a_call_that_has_responses_left(is_finished):
    calls = [FakeCall(FIVE), FakeCall(FIVE)]
    iterators = [ResponseIterator(call) for call in calls]
    for each in iterators:
        list(each) if is_finished else next(each)
    iterators[0].cancel()
    del iterators[1], each

    assert calls[0].is_cancelled is not is_finished
    assert calls[1].is_abandoned is not is_finished


# In coroutines


def test_responses_can_be_awaited_one_by_one(five):
    async def scenario():
        assert [each async for each in five] == FIVE
        assert [each async for each in five] == FIVE
        async for each in five:
            assert each is FIVE[0]
            break
        assert next(five) is FIVE[1]
        return [each async for each in five]

    assert asyncio.run(scenario()) == FIVE[2:]


def test_cancelled_wait_for_a_response_gives_the_call_up():
    call = FakeCall(FIVE)
    iterator = ResponseIterator(call)
    next(iterator)
    call.notify = lambda wake: None

    async def scenario():
        waiting = asyncio.ensure_future(anext(iterator))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(scenario())

    assert call.is_cancelled
    assert call.is_abandoned
