# SPDX-License-Identifier: Apache-2.0
"""Embedding requests as requests for a model, and its rows as answers."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InternalError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.protocol.openai.embeddings import encode_embeddings, read_embeddings, read_rows
from pytriton.protocol.openai.errors import OpenAIError
from tests.wire.openai.openai_specs import members, spec, values

OUTPUT = {"embedding": "FP32 [2]"}
BATCHING = spec("embeddings", {"input": "STRING [1]"}, OUTPUT, decoupled=False, max_batch_size=2)
ALONE = spec("embeddings", {"text": "STRING [1]"}, OUTPUT, decoupled=False)


def test_texts_are_rows_of_requests_if_the_model_batches():
    job = read_embeddings(members(input=["a", "b", "c"]), BATCHING)

    assert [values(each.inputs) for each in job.requests] == [{"input": ["a", "b"]}, {"input": "c"}]
    assert [each.inputs["input"].shape for each in job.requests] == [(2, 1), (1, 1)]
    assert job.row_counts == [2, 1]


def test_each_text_is_a_request_if_it_does_not():
    job = read_embeddings(members(input=["a", "b"], encoding_format="base64"), ALONE)

    assert [values(each.inputs) for each in job.requests] == [{"text": "a"}, {"text": "b"}]
    assert job.is_base64


def test_other_inputs_have_a_value_in_each_row():
    inputs = {"input": "STRING [1]", "dimensions": "INT32 [1] ?"}
    model = spec("embeddings", inputs, OUTPUT, decoupled=False, max_batch_size=2)

    job = read_embeddings(members(input=["a", "b", "c"], dimensions=5, user="me"), model)

    assert [values(each.inputs)["dimensions"] for each in job.requests] == [[5, 5], 5]
    assert [each.inputs["dimensions"].shape for each in job.requests] == [(2, 1), (1, 1)]
    assert [each.fields.parameters for each in job.requests] == [{"user": "me"}] * 2


def test_value_that_all_rows_repeat_is_limited():
    inputs = {"input": "STRING [1]", "note": "STRING [1] ?"}
    model = spec("embeddings", inputs, OUTPUT, decoupled=False, max_batch_size=2048)

    with pytest.raises(OpenAIError, match="at most 33554432 bytes for the model") as caught:
        read_embeddings(members(input=["a"] * 2048, note="x" * 20_000), model)

    assert (caught.value.status, caught.value.param) == (400, "note")


def test_value_that_all_requests_repeat_is_limited():
    with pytest.raises(OpenAIError, match="got 2048 times 20000") as caught:
        read_embeddings(members(input=["a"] * 2048, user="x" * 20_000), ALONE)

    assert (caught.value.status, caught.value.param) == (400, "input")


@pytest.mark.parametrize(
    "asked, param",
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [1, 2]}, "input"),
        ({"input": [[1], [2]]}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 5}, "dimensions"),
    ],
)
def test_wrong_requests_are_refused(asked, param):
    with pytest.raises(OpenAIError) as caught:
        read_embeddings(members(**asked), ALONE)

    assert (caught.value.status, caught.value.param) == (400, param)


def answer(values, dtype=dtypes.FP32):
    array = np.array(values).astype(dtype.numpy)
    return InferResponse(
        "m", "1", "", [InferTensor("embedding", dtype, array.shape, array.tobytes())]
    )


@pytest.mark.parametrize("dtype", [dtypes.FP16, dtypes.FP32, dtypes.FP64, dtypes.BF16])
def test_rows_of_all_float_types_are_read(dtype):
    rows = read_rows(answer([[1, 2], [3, 0.5]], dtype), "embedding", 2)

    assert rows.dtype == np.float32
    assert rows.tolist() == [[1.0, 2.0], [3.0, 0.5]]


@pytest.mark.parametrize("values, count", [([1.0, 2.0, 3.0], 2), ([], 1)])
def test_rows_that_do_not_fit_the_texts_are_an_error_of_the_model(values, count):
    with pytest.raises(InternalError, match="expected an embedding for each of"):
        read_rows(answer(values), "embedding", count)


def test_missing_output_is_an_error_of_the_model():
    with pytest.raises(InternalError, match="expected an output 'other'"):
        read_rows(answer([1.0]), "other", 1)


def test_answer_has_numbers_or_bytes():
    rows = [np.array([[1, 0.5], [2, 3]], np.float32), np.array([[4, 5]], np.float32)]

    numbers = json.loads(encode_embeddings("m", rows, 7, is_base64=False))
    texts = json.loads(encode_embeddings("m", rows, 7, is_base64=True))

    assert numbers == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [1.0, 0.5]},
            {"object": "embedding", "index": 1, "embedding": [2.0, 3.0]},
            {"object": "embedding", "index": 2, "embedding": [4.0, 5.0]},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    decoded = [
        np.frombuffer(base64.b64decode(each["embedding"]), "<f4").tolist() for each in texts["data"]
    ]
    assert decoded == [[1.0, 0.5], [2.0, 3.0], [4.0, 5.0]]
