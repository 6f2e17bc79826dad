# SPDX-License-Identifier: Apache-2.0
"""The ids of requests on lines of the log."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from pytriton.base import request_ids
from pytriton.base.request_ids import (
    MAX_LENGTH,
    MAX_SHOWN,
    add_to_log_records,
    current_prefix,
    current_request_ids,
    id_prefix,
    set_request_ids,
)


@pytest.fixture(autouse=True)
def as_before():
    factory = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(factory)
    set_request_ids(None)


def record():
    return logging.getLogger("test").makeRecord("test", logging.INFO, "f", 1, "m", (), None)


def test_code_without_a_request_has_no_ids():
    assert current_request_ids() == []
    assert current_prefix() == id_prefix([]) == ""


def test_ids_are_those_of_the_batch_without_repetition():
    set_request_ids({0: "a", 2: "b", 3: "a"})

    assert current_request_ids() == ["a", "b"]
    assert current_prefix() == "[request ids: a, b] "


def test_many_ids_are_counted():
    set_request_ids({number: f"r{number}" for number in range(MAX_SHOWN + 3)})

    assert current_request_ids() == [*(f"r{n}" for n in range(MAX_SHOWN)), "and 3 more"]


def test_long_id_is_cut_and_invisible_characters_are_escaped():
    set_request_ids({0: "a\n\x1b[31m" + "x" * 1000})

    assert len(current_request_ids()[0]) == MAX_LENGTH
    assert current_prefix().startswith("[request id: a\\n\\u001b[31mxxx")


def test_ids_are_set_for_a_statement():
    set_request_ids({0: "outer"})
    with request_ids.request_ids({0: "inner"}):
        inner = current_request_ids()

    assert (inner, current_request_ids()) == (["inner"], ["outer"])


def test_records_have_the_ids_once_this_is_asked_for():
    add_to_log_records()
    add_to_log_records()
    plain = record()
    set_request_ids({0: "a", 1: "b\n"})
    labelled = record()
    factory = logging.getLogRecordFactory()
    add_to_log_records()

    assert (plain.triton_request_id, plain.triton_request_ids) == ("", [])
    assert labelled.triton_request_id == "a, b\\n"
    assert labelled.triton_request_ids == ["a", "b\n"]
    assert logging.getLogRecordFactory() is factory


def test_users_may_give_records_a_request_id_of_their_own(caplog):
    add_to_log_records()
    logging.getLogger("user").warning("text", extra={"request_id": 7, "request_ids": [7]})

    assert (caplog.records[0].request_id, caplog.records[0].request_ids) == (7, [7])


def test_records_of_another_factory_stay_what_they_are():
    class Record(logging.LogRecord):
        pass

    logging.setLogRecordFactory(Record)
    add_to_log_records()

    assert isinstance(record(), Record)


def test_tasks_have_the_ids_of_their_batch_and_threads_have_none():
    seen = {}

    async def work(name):
        set_request_ids({0: name})
        await asyncio.sleep(0)
        child = asyncio.create_task(nested())
        seen[name] = (current_request_ids(), await child)

    async def nested():
        return current_request_ids()

    async def main():
        await asyncio.gather(*(work(name) for name in "abc"))

    asyncio.run(main())
    set_request_ids({0: "here"})
    thread = threading.Thread(target=lambda: seen.update(thread=current_request_ids()))
    thread.start()
    thread.join()

    assert seen == {"a": (["a"], ["a"]), "b": (["b"], ["b"]), "c": (["c"], ["c"]), "thread": []}
