# SPDX-License-Identifier: Apache-2.0
"""Requests of all kinds to ensembles at once: each is answered as it is alone."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.ensemble_differential.asking import numbers, rows
from tests.ensemble_differential.recording import start
from tests.python_backend_differential.clients import Arrays, text
from tests.recorded_suite import Server

pytestmark = pytest.mark.e2e

CONNECTIONS = 32
REQUESTS_OF_EACH = 40
# How many requests a step met at once is its own affair.
COMPANY = re.compile(r'\\*"requests\\*": \d+')

Kind = tuple[str, Arrays, list[str], dict[str, Any]]


def plain(model: str, *inputs: Arrays) -> list[Kind]:
    return [(model, arrays, [], {}) for arrays in inputs]


KINDS: list[Kind] = [
    *plain("chain", *({"A": rows(number)} for number in range(4))),
    *plain("chain", {"A": rows(1, 2, 3)}, {"A": np.zeros((9, 1), np.int32)}),
    *plain("chain", {"A": np.zeros((1, 0), np.int32)}, {"A": np.zeros((1, 5), np.int32)}),
    *plain("chain", {"A": np.zeros((1, 1, 1), np.int32)}, {}),
    *plain("nested", {"A": rows(1)}, {"A": rows(2, 3)}),
    *plain("mixed_models", {"A": rows(1)}, {"A": rows(1, 2)}),
    *plain("batches_over_plain_models", {"A": rows(1)}, {"A": rows(1, 2)}),
    *plain("required_of_optional", {"RIGHT": rows(1)}, {"LEFT": rows(1), "RIGHT": rows(2)}),
    *(("diamond", {"A": rows(5)}, outputs, {}) for outputs in (["B"], ["C"], ["B", "C"])),
    *(
        (model, {"WORDS": text(word)}, [], {})
        for model in ("words_then_add", "words_only")
        for word in ("1", "raise", "error:NOT_FOUND", "missing", "float", "shape", "nothing")
    ),
    *(
        ("telling_all", {"LEFT": numbers(number)}, [], {"sequence_id": number})
        for number in range(3)
    ),
    ("telling_all", {}, [], {"parameters": {"text": "a", "number": 1}}),
]


async def ask(library: Any, client: Any, kind: Kind, name: str) -> Any:
    """An answer without the id of its request."""
    model, arrays, outputs, options = kind
    inputs = []
    for key, array in arrays.items():
        inputs.append(library.InferInput(key, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    wanted = [library.InferRequestedOutput(output) for output in outputs] or None
    try:
        result = await client.infer(model, inputs, outputs=wanted, request_id=name, **options)
    except InferenceServerException as error:
        return [error.status(), error.message().replace(name, "")]
    answer = result.get_response() if library is triton_http else result.get_response(as_json=True)
    given = [
        [output["name"], output["datatype"], output["shape"]]
        for output in answer.get("outputs", [])
    ]
    values = [str(np.asarray(result.as_numpy(output)).tolist()) for output, _, _ in given]
    seen = [answer["id"] == name, given, answer.get("parameters"), COMPANY.sub("", str(values))]
    return [seen[:-1], seen[-1].replace(name, "")]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start(is_real=False) as running:
        yield running


@pytest.mark.parametrize("library", [triton_http, triton_grpc], ids=["http", "grpc"])
def test_requests_at_once_are_answered_as_they_are_alone(server: Server, library: Any) -> None:
    port = server.http if library is triton_http else server.grpc
    chance = random.Random(port % 7)

    async def load(client: Any, alone: list[Any]) -> list[Any]:
        different = []
        for _ in range(REQUESTS_OF_EACH):
            number = chance.randrange(len(KINDS))
            answer = await ask(library, client, KINDS[number], f"id-{chance.randrange(10**9)}-")
            if answer != alone[number]:
                different.append((KINDS[number], alone[number], answer))
        return different

    async def compare() -> list[Any]:
        async with library.InferenceServerClient(f"127.0.0.1:{port}") as client:
            alone = [await ask(library, client, kind, "id-alone-") for kind in KINDS]
            found = await asyncio.gather(*(load(client, alone) for _ in range(CONNECTIONS)))
            return [one for different in found for one in different]

    assert asyncio.run(compare()) == []
