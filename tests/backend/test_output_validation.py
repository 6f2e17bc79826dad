# SPDX-License-Identifier: Apache-2.0
import re

import ml_dtypes
import numpy as np
import pytest

from pytriton.base.dtypes import BYTES, FP32
from pytriton.model_config.triton_model_config import TensorSpec
from pytriton.proxy.types import Request, Response
from pytriton.runtime.functions.output_validation import OutputValidator, convert_output

FLOATS = TensorSpec("x", (2,), np.float32)
WORDS = TensorSpec("words", (-1,), np.bytes_)


def _validator(*outputs, batching=True, strict=False):
    return OutputValidator("model", outputs or (FLOATS, WORDS), batching, strict)


def floats(rows=1, size=2, dtype=np.float32):
    return np.zeros((rows, size), dtype=dtype)


def objects(*elements):
    array = np.empty((len(elements), 1), dtype=object)
    array[:, 0] = elements
    return array


@pytest.mark.parametrize("kind", [dict, Response, Request])
def test_any_mapping_is_a_response(kind):
    response = kind({"x": floats()})

    assert _validator(FLOATS).validate([response], 1) == [response]


@pytest.mark.parametrize("results", [({"x": floats()},), {"x": floats()}, None, iter([])])
def test_results_have_to_be_a_list(results):
    expected = (
        "Outputs returned by `model` model callable must be list of response dicts with numpy "
        "arrays. Got outputs="
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        _validator().validate(results, 1)


def test_items_have_to_be_mappings():
    expected = (
        "Outputs returned by `model` model callable must be list of response dicts with numpy "
        "arrays. Got response=[1]"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        _validator().validate([[1]], 1)


def test_number_of_results_has_to_be_that_of_the_requests():
    expected = (
        "Number of outputs returned by `model` inference callable (1) does not match number of "
        "requests (2) received from Triton."
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        _validator().validate([{"x": floats()}], 2)


def test_request_that_is_returned_as_it_came_stands_for_the_outputs():
    validator = _validator(TensorSpec("OUTPUT_1", (2,), np.float32), strict=True)
    array = floats()

    (response,) = validator.validate([Request({"INPUT_1": array})], 1)

    assert response["OUTPUT_1"] is array


def test_request_with_outputs_of_its_own_is_kept():
    request = Request({"x": floats(), "y": floats()})

    assert _validator(FLOATS).validate([request], 1) == [request]


def test_missing_output_is_refused_unless_its_client_did_not_ask_for_it():
    response = {"x": floats()}

    with pytest.raises(ValueError, match=r"\['words'\] is missing"):
        _validator().validate([response, response], 2, {0: ["x"]})
    assert _validator().validate([response], 1, {0: ["x"]}) == [response]


def test_outputs_without_names_are_checked_under_the_names_they_get():
    specs = [TensorSpec("OUTPUT_1", (2,), np.float32), TensorSpec("OUTPUT_2", (-1,), np.bytes_)]
    validator = OutputValidator("model", specs, True, False, unnamed=["OUTPUT_1", "OUTPUT_2"])
    array = floats()

    outputs = validator.validate_batch({"a": array, "b": objects(b"x")})

    assert list(outputs) == ["OUTPUT_1", "OUTPUT_2"]
    assert outputs["OUTPUT_1"] is array


def test_wrong_shape_is_sent_with_one_warning_for_each_output(caplog):
    validator = _validator()

    for size in (3, 4, 2, 3):
        validator.validate_batch({"x": floats(size=size), "words": objects(b"x")})
    validator.validate_batch({"x": floats(), "words": np.array([b"x"])})

    of_x, of_words = caplog.messages
    assert of_x.startswith(
        "Returned output `x` for model `model` has invalid shapes at one or more positions. "
        "Returned: (3,). Expected: (2,)."
    )
    assert "`words`" in of_words
    assert "Returned: (). Expected: (-1,)." in of_words


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "outputs, expected",
    [
        ({5: floats()}, "Not all keys returned by `model` model callable are string"),
        ({"x": [1.0]}, "Not all values returned by `model` model callable are numpy arrays"),
        (
            {"x": floats(dtype=np.complex64)},
            (
                "Only bool, numeric, string, unicode and object arrays are supported by Triton "
                "(dtype.kind: biufOSU). Returned `x` for model `model` has `c` dtype.kind."
            ),
        ),
        (
            {"words": objects("text")},
            (
                "Use string/byte-string instead of object for passing string in NumPy array from "
                "model `model`."
            ),
        ),
        (
            {"words": objects(b"first", 5)},
            (
                "Only bytes as objects dtype are supported by PyTriton. Returned `words` from "
                "`model` has `<class 'int'>` type."
            ),
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_at_every_call(strict, outputs, expected):
    validator = _validator(strict=strict)

    for _ in range(2):
        with pytest.raises(ValueError, match=re.escape(expected)):
            validator.check_values(outputs)


@pytest.mark.parametrize(
    "array",
    [
        np.array([True]),
        np.array([1], dtype=np.uint64),
        np.array([1.0], dtype=np.longdouble),
        np.array([b"x"]),
        np.array(["x"]),
        np.array([1], dtype=ml_dtypes.bfloat16),
        objects(b"x", np.bytes_(b"y")),
        np.empty((0,), dtype=object),
    ],
)
def test_arrays_of_all_other_types_can_be_sent(array):
    # The check raises for what it refuses.
    _validator().check_values({"undeclared": array})


@pytest.mark.parametrize(
    "outputs, expected",
    [
        (
            {"other": floats()},
            "Returned output `other` is not defined in model config for model `model`.",
        ),
        (
            {"x": floats(dtype=np.float64)},
            (
                "Returned output `x` for model `model` has invalid type. Returned: float64 (f). "
                "Expected: <class 'numpy.float32'>."
            ),
        ),
        (
            {"x": np.array([[b"1", b"2"]])},
            (
                "Returned output `x` for model `model` has invalid type. Returned: |S1 (S). "
                "Expected: <class 'numpy.float32'>."
            ),
        ),
        (
            {"words": floats()},
            (
                "Returned output `words` for model `model` has invalid type. Returned: "
                "float32 (f). Expected: <class 'numpy.bytes_'>."
            ),
        ),
        (
            {"x": np.zeros(2, dtype=np.float32)},
            (
                "Returned output `x` for model `model` has invalid shapes. Returned: (). "
                "Expected: (2,)."
            ),
        ),
        (
            {"x": floats(size=3)},
            (
                "Returned output `x` for model `model` has invalid shapes at one or more "
                "positions. Returned: (3,). Expected: (2,)."
            ),
        ),
    ],
)
def test_strict_refuses_what_is_not_declared(outputs, expected):
    _validator(strict=False).check_values(outputs)
    validator = _validator(strict=True)

    for _ in range(2):
        with pytest.raises(ValueError, match=re.escape(expected)):
            validator.check_values(outputs)


@pytest.mark.parametrize("words", [np.array([["ä"]]), np.array([[b"x"]]), objects(b"x")])
def test_strict_takes_byte_strings_in_any_dtype(words):
    # The check raises for what it refuses.
    _validator(strict=True).check_values({"x": floats(), "words": words})


def test_strict_wants_no_batch_size():
    validator = _validator(strict=True)

    # The check raises for what it refuses.
    validator.check_values({"x": floats(rows=1)})
    validator.check_values({"x": floats(rows=5)})


def test_strict_compares_whole_shapes_without_batching():
    validator = _validator(batching=False, strict=True)

    validator.check_values({"x": np.zeros(2, dtype=np.float32)})
    with pytest.raises(ValueError, match=r"invalid shapes. Returned: \(1, 2\). Expected: \(2,\)"):
        validator.check_values({"x": floats()})


def test_strict_takes_scalars_of_a_scalar_output_with_their_batch_dimension_only():
    validator = _validator(TensorSpec("x", (), np.float32), strict=True)

    validator.check_values({"x": np.zeros(3, dtype=np.float32)})
    with pytest.raises(ValueError, match="invalid shapes"):
        validator.check_values({"x": np.array(1, dtype=np.float32)})


def test_change_of_type_or_shape_is_seen_after_many_equal_results():
    validator = _validator(strict=True)
    for _ in range(3):
        validator.check_values({"x": floats()})

    with pytest.raises(ValueError, match="invalid type"):
        validator.check_values({"x": floats(dtype=np.int32)})
    with pytest.raises(ValueError, match="invalid shapes"):
        validator.check_values({"x": floats(size=3)})


@pytest.mark.parametrize(
    "array, expected",
    [
        (floats(dtype=np.float64), floats()),
        (floats(dtype=">f4"), floats()),
        (np.array([[b"1", b"2"]]), np.array([[1, 2]], dtype=np.float32)),
        (np.array([[1, 2]]), np.array([[1, 2]], dtype=np.float32)),
    ],
)
def test_numbers_are_cast_to_the_declared_type(array, expected):
    cast = convert_output("x", array, FP32)

    assert cast.dtype == np.dtype("<f4")
    assert cast.tolist() == expected.tolist()


def test_declared_type_is_not_copied():
    array = floats()

    assert convert_output("x", array, FP32) is array


@pytest.mark.parametrize("array", [objects(b"x\0"), np.array([[b"x"]]), np.array([["ä"]])])
def test_text_stays_as_it_is(array):
    assert convert_output("words", array, BYTES) is array


def test_numbers_of_a_byte_string_output_become_text():
    assert convert_output("words", np.array([[1, 20]]), BYTES).tolist() == [["1", "20"]]


def test_text_that_is_no_number_cannot_become_one():
    expected = "Returned output `x` cannot be converted. Returned: <U3. Expected: FP32."
    with pytest.raises(ValueError, match=re.escape(expected)):
        convert_output("x", np.array([["abc"]]), FP32)
