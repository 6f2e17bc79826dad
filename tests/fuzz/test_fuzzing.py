# SPDX-License-Identifier: Apache-2.0
"""The runner of random cases and its judges: they find, shrink and report what is wrong."""

from __future__ import annotations

import ast
import logging
import random

import pytest

from pytriton.base.package import PACKAGE_FOLDER
from tests.fuzz.fuzzing import (
    Case,
    assert_doubles,
    assert_reveals_nothing,
    assert_work_is_paid,
    fuzz,
    without_logged_errors,
)
from tests.fuzz.mutation import field, mutate_document, mutate_message, split_fields


def some_bytes(source: random.Random) -> Case:
    return [source.randbytes(source.randrange(1, 40)) for _ in range(source.randrange(1, 8))]


def refuse_seven(case: Case) -> None:
    for step in case:
        if 7 in step:
            raise ValueError("a seven")


def test_failing_case_is_reported_as_small_as_it_can_be():
    with pytest.raises(AssertionError, match="a seven") as failure:
        fuzz("example", 200, some_bytes, refuse_seven)

    assert str(failure.value).endswith("[\n    b'\\x07',\n]")
    assert isinstance(failure.value.__cause__, ValueError)


def test_reported_case_can_be_pasted():
    with pytest.raises(AssertionError) as failure:
        fuzz("example", 200, some_bytes, refuse_seven)
    case = ast.literal_eval(str(failure.value).partition("same place:\n")[2])

    with pytest.raises(ValueError, match="a seven"):
        refuse_seven(case)


def test_cases_are_the_same_in_every_run():
    seen: list[Case] = []
    for _ in range(2):
        cases: Case = []
        fuzz("example", 5, some_bytes, cases.append)
        seen.append(cases)

    assert seen[0] == seen[1]
    assert len({str(case) for case in seen[0]}) == len(seen[0])


@pytest.mark.parametrize(
    "text",
    [
        f"{PACKAGE_FOLDER}/x",
        "File reader.py, line 3",
        "<Model object at 0x7f61aba87c40>",
        "pid 17",
        "pytriton.serving.engine.model",
    ],
)
def test_text_that_tells_of_the_process_is_found(text):
    with pytest.raises(AssertionError, match="is in"):
        assert_reveals_nothing(text)
    assert_reveals_nothing(text, sent=text.encode())


def test_logged_exception_is_raised():
    logger = logging.getLogger("pytriton.example")

    with pytest.raises(KeyError), without_logged_errors():
        logger.error("unexpected", exc_info=KeyError("x"))


def spend(rounds: int) -> None:
    for number in range(rounds):
        abs(number)


def test_work_above_its_bytes_is_found():
    assert_work_is_paid(lambda: spend(100), 10, fixed_work=0)
    with pytest.raises(AssertionError, match="units of work"):
        assert_work_is_paid(lambda: spend(1000), 10, fixed_work=0)


def test_work_that_grows_with_the_square_is_found():
    assert_doubles(lambda size: lambda: spend(100 * size), (10, 20, 40), slack=0)
    with pytest.raises(AssertionError, match="work of"):
        assert_doubles(lambda size: lambda: spend(size * size), (10, 20, 40), slack=0)


def test_changed_documents_differ_in_every_depth():
    source = random.Random(1)
    document = {"a": [1, {"b": "c"}], "d": 5}
    changed = [mutate_document(source, document) for _ in range(300)]

    assert document == {"a": [1, {"b": "c"}], "d": 5}
    assert {"a": [1, {}], "d": 5} in changed
    assert any(isinstance(each, dict) and set(each) == {"a"} for each in changed)


def test_fields_of_a_message_are_split_and_changed():
    message = field(1, 2, b"abc") + field(2, 0, b"\x07") + field(3, 5, bytes(4))
    source = random.Random(1)

    assert split_fields(message) == [(1, 2, b"abc"), (2, 0, b"\x07"), (3, 5, bytes(4))]
    assert len({mutate_message(source, message) for _ in range(100)}) > 50
