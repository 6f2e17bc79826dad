# SPDX-License-Identifier: Apache-2.0
"""Which answers count as equal, and what is said about those that are not."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.client.kserve.records import NamedArray, PlainTensor
from pytriton.protocol.recording import Exchange, RecordedResponse, RecordedTensor
from pytriton.tools.replay.comparing import SOME_ERROR, ReplayedAnswers, Tolerance, differences

NAN, INF = np.float32(np.nan), np.float32(np.inf)


def exchange_of(*responses, error=None):
    recorded = [
        RecordedResponse(
            1,
            [
                RecordedTensor(each.name, each.datatype, each.shape, each.data)
                for each in (PlainTensor.of(array) for array in arrays)
            ],
        )
        for arrays in responses
    ]
    if error is not None:
        recorded.append(RecordedResponse(1, error=error))
    return Exchange(number=7, arrived_ns=0, model="m", responses=recorded)


def found_between(expected, got, datatype="FP32", tolerance=None):
    exchange = exchange_of([NamedArray("y", datatype, expected)])
    return differences(exchange, ReplayedAnswers([{"y": got}]), tolerance or Tolerance())


def floats(*values):
    return np.array(values, np.float32)


def test_one_element_in_a_million_is_found():
    expected = np.random.default_rng(1).random((1000, 1000), np.float32)
    got = expected.copy()
    got[617, 23] += 0.001
    (found,) = found_between(expected, got)

    assert (found.number, found.output, found.index, found.count) == (7, "y", (617, 23), 1)
    assert found.text().startswith("request 7 of m, output y[617, 23]: expected 0.384")


@pytest.mark.parametrize(
    "expected, got",
    [
        (floats(1, 2), floats(1, 2.00001)),
        (floats(NAN, INF, -INF), floats(NAN, INF, -INF)),
        (floats(), floats()),
        (floats(0), floats(1e-9)),
    ],
)
def test_floats_within_the_tolerances_are_equal(expected, got):
    assert found_between(expected, got) == []


@pytest.mark.parametrize(
    "expected, got",
    [
        (floats(1, 2), floats(1, 2.001)),
        (floats(NAN), floats(1)),
        (floats(1), floats(NAN)),
        (floats(INF), floats(-INF)),
        (floats(1), floats(INF)),
        (floats(INF), floats(1)),
        (floats(1), floats([1])),
    ],
)
def test_other_floats_differ(expected, got):
    got = got if got.shape == expected.shape else got.reshape(1, -1)

    assert len(found_between(expected, got)) == 1


def test_tolerances_can_be_zero():
    tolerance = Tolerance(rtol=0, atol=0)

    assert found_between(floats(1), np.nextafter(floats(1), floats(2)), tolerance=tolerance)


@pytest.mark.parametrize(
    "datatype, expected, got",
    [
        ("INT64", np.array([2**62], np.int64), np.array([2**62 + 1], np.int64)),
        ("BOOL", np.array([True]), np.array([False])),
        ("BYTES", np.array([b"a", b"b"], object), np.array([b"a", b"c"], object)),
    ],
)
def test_integers_booleans_and_strings_have_to_be_equal(datatype, expected, got):
    assert len(found_between(expected, got, datatype)) == 1
    assert found_between(expected, expected.copy(), datatype) == []


def test_another_datatype_shape_or_missing_output_differs():
    assert "float32[2]" in found_between(floats(1, 2), floats(1, 2, 3))[0].text()
    assert "float64" in found_between(floats(1), np.array([1.0]))[0].text()
    exchange = exchange_of([NamedArray("y", "FP32", floats(1))])
    (found,) = differences(exchange, ReplayedAnswers([{"z": floats(1)}]), Tolerance())

    assert found.text() == "request 7 of m, output y: expected this output, got z"


def test_number_of_responses_is_compared():
    one = [NamedArray("y", "FP32", floats(1))]
    (found,) = differences(exchange_of(one, one), ReplayedAnswers([{"y": floats(1)}]), Tolerance())

    assert found.text() == "request 7 of m, answer: expected 2 responses, got 1"


def test_later_response_of_a_stream_is_named():
    responses = [[NamedArray("y", "FP32", floats(value))] for value in (1, 2)]
    answers = ReplayedAnswers([{"y": floats(1)}, {"y": floats(3)}])
    (found,) = differences(exchange_of(*responses), answers, Tolerance())

    assert found.text() == "request 7 of m, response 1, output y[0]: expected 2.0, got 3.0"


def test_errors_are_compared_with_errors():
    failed, answered = exchange_of(error="no"), exchange_of([NamedArray("y", "FP32", floats(1))])

    assert differences(failed, ReplayedAnswers((), "other words"), Tolerance()) == []
    assert "expected the error 'no', got an answer" in (
        differences(failed, ReplayedAnswers([{}]), Tolerance())[0].text()
    )
    assert "expected an answer, got the error 'late'" in (
        differences(answered, ReplayedAnswers((), "late"), Tolerance())[0].text()
    )
    assert "expected an answer, got an error" in (
        differences(answered, ReplayedAnswers((), SOME_ERROR), Tolerance())[0].text()
    )


def test_redacted_outputs_are_not_compared():
    exchange = exchange_of([NamedArray("y", "FP32", floats(1))])
    tensor = exchange.responses[0].outputs[0]
    exchange.responses[0].outputs[0] = RecordedTensor(
        tensor.name, tensor.datatype, tensor.shape, bytes(4), is_redacted=True
    )

    assert differences(exchange, ReplayedAnswers([{"y": floats(5)}]), Tolerance()) == []
