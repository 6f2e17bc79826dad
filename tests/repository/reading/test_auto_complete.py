# SPDX-License-Identifier: Apache-2.0
"""What a model may change of its configuration, and when it need not be asked."""

from __future__ import annotations

import ast
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.serving.engine.config import config_from_dict, normalise_config
from pytriton.serving.repository.reading.config_files import completed_config, may_complete


@pytest.mark.parametrize(
    "source, expected",
    [
        ("class TritonPythonModel:\n    def execute(self, requests): ...\n", False),
        (
            "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c): ...\n",
            True,
        ),
        ("from base import Base\nclass TritonPythonModel(Base):\n    pass\n", True),
        ("from other import TritonPythonModel\n", True),
        ("@decorate\nclass TritonPythonModel:\n    pass\n", True),
        ("class TritonPythonModel:\n  def execute(self", True),
        ("null \0 byte", True),
    ],
)
def test_only_a_file_that_cannot_have_the_function_is_not_asked(source, expected):
    assert may_complete(source) is expected


def config(**fields):
    return normalise_config(config_from_dict({"name": "m", "backend": "python", **fields}))


def test_completion_takes_batching_tensors_scheduler_and_policy():
    tensor = {"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}
    text = json.dumps(
        {
            "name": "other",
            "backend": "other",
            "max_batch_size": 8,
            "input": [tensor],
            "output": [{**tensor, "name": "OUT"}],
            "dynamic_batching": {},
            "model_transaction_policy": {"decoupled": True},
        }
    )

    completed = completed_config(config(), text)
    assert (completed.name, completed.backend, completed.max_batch_size) == ("m", "python", 8)
    assert [each.name for each in (*completed.input, *completed.output)] == ["IN", "OUT"]
    assert list(completed.dynamic_batching.preferred_batch_size) == [8]
    assert completed.model_transaction_policy.decoupled


def test_completion_may_not_choose_another_scheduler():
    given = config(max_batch_size=4, sequence_batching={"iterative_sequence": True})
    with pytest.raises(InternalError, match=r"'sequence_batching'.*'dynamic_batching'"):
        completed_config(given, '{"max_batch_size": 4, "dynamic_batching": {}}')


def test_completion_that_is_no_configuration_is_refused():
    with pytest.raises(InvalidArgumentError, match="nonsense"):
        completed_config(config(), '{"nonsense": 1}')


@pytest.mark.parametrize("text", ["{", "[" * 5000, '"\\ud800"', " "])
def test_completion_that_is_no_json_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="'m' returned no configuration"):
        completed_config(config(), text)


def test_threads_parse_files_one_after_the_other(monkeypatch):
    parse, is_busy, overlaps = ast.parse, threading.Lock(), []

    def watched(source):
        is_first = is_busy.acquire(blocking=False)
        overlaps.append(not is_first)
        time.sleep(0.001)  # others would come meanwhile
        if is_first:
            is_busy.release()
        return parse(source)

    source = "class TritonPythonModel:\n    pass\n"
    with monkeypatch.context() as patched, ThreadPoolExecutor(8) as threads:
        patched.setattr(ast, "parse", watched)
        answers = list(threads.map(may_complete, [source] * 40))

    assert answers == [False] * 40
    assert overlaps == [False] * 40
