# SPDX-License-Identifier: Apache-2.0
"""Parameters and headers of requests, what models do wrong, and configurations."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.client_differential.case import Row, each
from tests.client_differential.cases_inputs import A
from tests.client_differential.ways import ASYNC_STREAM, ASYNCIO, COUPLED, FUTURES, SYNC, Use

WRONG = [
    *("fine", "nothing", "empty list", "empty dict", "two answers", "a dict", "unknown output"),
    *("another output more", "wrong dtype", "wrong shape", "no batch axis", "more rows"),
    *("a list for an array", "text", "a number for a name", "key error", "several lines"),
    "wordless",
]
MODELS = [
    *("AddSub", "Configured", "Factor", "Optional", "Plain", "Slow", "Stream", "PlainStream"),
    *("Types", "Versioned"),
]


def telling(**settings: Any) -> Use:
    return lambda client: client.infer_sample(A, **settings)


PARAMETERS = {
    "none": None,
    "an empty dict": {},
    "text": {"name": "value"},
    "empty text": {"name": ""},
    "unicode": {"name": "gr\u00fc\u00df"},
    "a number": {"name": 5},
    "zero": {"name": 0},
    "a negative number": {"name": -5},
    "a large number": {"name": 2**40},
    "a number of more than 64 bits": {"name": 2**70},
    "true": {"name": True},
    "false": {"name": False},
    "several": {"a": "1", "b": 2, "c": True},
    "a float": {"name": 1.5},
    "None": {"name": None},
    "a list for a value": {"name": [1]},
    "bytes": {"name": b"value"},
    "a number for a name": {1: "value"},
    "a list": ["name"],
    "a text": "name",
    "numpy's number": {"name": np.int64(5)},
    "a reserved name": {"priority": 1},
    "a sequence's name": {"sequence_id": 5},
    "an empty name": {"": "value"},
}
HEADERS = {
    "text": {"x-name": "value"},
    "a number": {"x-name": 5},
    "true": {"x-name": True},
    "several": {"x-a": "1", "x-b": "2"},
    "not forwarded": {"other": "value"},
    "a float": {"x-name": 1.5},
    "None": {"x-name": None},
    "a number for a name": {1: "value"},
    "a list": ["x-name"],
    "capitals": {"X-Name": "Value"},
}


def say(script: str) -> Use:
    return lambda client: client.infer_sample(np.array([script.encode()], dtype=object))


ROWS = (
    *(Row(f"parameters, {n}", "Parameters", telling(parameters=v)) for n, v in PARAMETERS.items()),
    *(Row(f"headers, {name}", "Parameters", telling(headers=v)) for name, v in HEADERS.items()),
    Row("both", "Parameters", telling(parameters={"p": 1}, headers={"x-h": "2"})),
    *(
        Row(f"a model that answers {script}", "Wrong", say(script), is_deadly=script == "text")
        for script in WRONG
    ),
    *(Row(f"a strict model that answers {script}", "StrictWrong", say(script)) for script in WRONG),
    Row("a model that fails", "Failing", lambda c: c.infer_sample(A)),
    Row("a model that yields once", "Once", lambda c: c.infer_sample(A)),
    Row("the bound version", "Versioned", lambda c: c.infer_sample(A), {"model_version": "3"}),
    Row("the latest version", "Versioned", lambda c: c.infer_sample(A)),
    Row("wait for the model", "AddSub", lambda c: c.wait_for_model(10)),
)
CONFIGURATIONS = (
    *each(SYNC, (Row(f"config of {m}", m, lambda c: c.model_config) for m in MODELS)),
    *each(FUTURES, (Row(f"config of {m}", m, lambda c: c.model_config()) for m in MODELS)),
    *each(ASYNCIO, (Row(f"config of {m}", m, lambda c: c.model_config) for m in MODELS)),
    *each(SYNC, (Row(f"batching of {m}", m, lambda c: c.is_batching_supported) for m in MODELS)),
    *each(SYNC, [Row("wait for the server", "AddSub", lambda c: c.wait_for_server(10))]),
)
STREAMED = (
    Row("streamed parameters", "ParametersStream", telling(parameters={"p": 1})),
    Row("streamed headers", "ParametersStream", telling(headers={"x-h": "2"})),
)
CASES = (*each(COUPLED, ROWS), *each([ASYNC_STREAM], STREAMED), *CONFIGURATIONS)
