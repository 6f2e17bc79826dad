# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping

import numpy as np
import pytest

from pytriton.proxy.types import Request, Response

A = np.array([[1]])
B = np.array([[2]])


@pytest.mark.parametrize("kind", [Request, Response])
def test_tensors_are_reached_as_in_a_dict(kind):
    message = kind({"a": A, "b": B})

    assert message["a"] is A
    assert list(message) == list(message.keys()) == ["a", "b"]
    assert list(message.values()) == [A, B]
    assert dict(message.items()) == {"a": A, "b": B}
    assert len(message) == 2
    assert "a" in message
    assert "c" not in message
    assert message.get("c") is None


@pytest.mark.parametrize("kind", [Request, Response])
def test_tensors_can_be_set_and_deleted(kind):
    message = kind({"a": A})

    message["b"] = B
    del message["a"]

    assert message.data == {"b": B}
    with pytest.raises(KeyError):
        message["a"]


@pytest.mark.parametrize("kind", [Request, Response])
def test_message_is_a_mapping_that_unpacks(kind):
    message = kind({"a": A})
    collected = {}
    collected.update(message)

    assert isinstance(message, Mapping)
    assert collected == dict(**message) == {"a": A}


def test_request_takes_parameters_second():
    request = Request({"a": A}, {"k": 1})

    assert request.parameters == {"k": 1}
    assert (request.span, request.requested_output_names) == (None, None)


def test_span_of_a_request_that_is_not_traced_does_nothing():
    with Request({"a": A}).traced_span("step") as span:
        assert span is None
