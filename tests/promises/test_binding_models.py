# SPDX-License-Identifier: Apache-2.0
"""Binding: what `bind` refuses and with which words, and what outputs may look like."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonInvalidOperationError, PyTritonValidationError
from pytriton.model_config import Tensor
from pytriton.triton import Triton, TritonConfig

X = Tensor(name="x", dtype=np.float32, shape=(-1,))
Y = Tensor(name="y", dtype=np.float32, shape=(-1,))
ONE = np.ones((1, 1), np.float32)


def identity(requests):
    return [{"y": request["x"]} for request in requests]


@pytest.fixture
def triton():
    return Triton(config=TritonConfig())


@pytest.mark.parametrize(
    "name, reason",
    [
        ("", "Model name cannot be empty"),
        (
            "AB#cd/90/1",
            "Model name can only contain alphanumeric characters, dots, underscores and dashes",
        ),
    ],
)
def test_wrong_name_is_refused_in_the_usual_words(triton, name, reason):
    with pytest.raises(PyTritonValidationError, match=reason):
        triton.bind(name, lambda: None, [], [])


def test_name_of_letters_digits_dots_underscores_and_dashes_is_taken(triton):
    triton.bind("AB-cd_90.1", lambda: None, [], [])  # raises for a name that is not allowed


def test_name_is_bound_once_whatever_its_case(triton):
    triton.bind("Model", identity, [X], [Y])
    triton.bind("Model", identity, [X], [Y], model_version=2)

    with pytest.raises(
        PyTritonInvalidOperationError, match="Cannot add model with the same name twice"
    ):
        triton.bind("model", identity, [X], [Y])


@pytest.mark.parametrize(
    "infer_func",
    [3, None, "name", [identity, 3], []],
    ids=["number", "none", "text", "mixed", "empty"],
)
def test_what_cannot_be_called_is_refused(triton, infer_func):
    with pytest.raises(PyTritonValidationError, match="callable"):
        triton.bind("Model", infer_func, [X], [Y])


def test_optional_output_is_refused(triton):
    output = Tensor(name="y", dtype=np.float32, shape=(1,), optional=True)

    with pytest.raises(PyTritonValidationError, match=r"optional: .*y"):
        triton.bind("Model", identity, [X], [output])


@pytest.mark.e2e
def test_model_without_inputs_and_outputs_is_ready(host):
    name = host.bind(lambda: None, [], [])

    assert host.get(f"/v2/models/{name}/ready").status == 200


@pytest.mark.e2e
def test_callable_knows_which_outputs_were_asked_for_and_has_parameters(host):
    seen = []

    def infer(requests):
        seen.extend((request.requested_output_names, request.parameters) for request in requests)
        return [{"y": request["x"], "z": request["x"]} for request in requests]

    name = host.bind(infer, outputs=[Y, Tensor(name="z", dtype=np.float32, shape=(-1,))])
    with ModelClient(f"localhost:{host.port}", name) as client:
        client.infer_batch(ONE)

    assert seen == [(["y", "z"], {})]


@pytest.mark.e2e
def test_one_row_may_answer_a_request_of_many(host):
    name = host.bind(lambda requests: [{"y": ONE} for _ in requests])

    assert host.infer(name, x=np.ones((3, 1), np.float32))["y"].shape == (1, 1)


@pytest.mark.e2e
def test_text_without_a_dimension_of_its_own_answers_for_images(host):
    @batch
    def classify(image):
        return [np.char.encode(np.array(["cat"] * len(image)), "utf-8")]

    image = Tensor(name="image", dtype=np.uint8, shape=(8, 8, 3))
    name = host.bind(classify, [image], [Tensor(name="class", dtype=bytes, shape=(-1,))])
    pixels = np.zeros((8, 8, 3), np.uint8)
    with ModelClient(f"localhost:{host.port}", name) as client:
        assert client.infer_sample(pixels) == {"class": b"cat"}
        assert client.infer_batch(np.stack([pixels] * 2))["class"].tolist() == [b"cat"] * 2
