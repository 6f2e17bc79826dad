# SPDX-License-Identifier: Apache-2.0
"""Inputs of load tests: made up, from a directory, and from files of JSON."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.tools.perf.data.inputs import read_inputs
from pytriton.tools.perf.data.settings import DataSettings
from pytriton.tools.perf.errors import DataError
from pytriton.tools.perf.model_description import MeasuredModel, MeasuredTensor

A = MeasuredTensor("a", dtypes.FP32, (2,))
TEXT = MeasuredTensor("text", dtypes.BYTES, (1,))
TOKENS = MeasuredTensor("tokens", dtypes.INT32, (-1,))
GRID = MeasuredTensor("grid", dtypes.INT8, (-1, -1))
MAYBE = MeasuredTensor("maybe", dtypes.BOOL, (1,), is_optional=True)
SUM = MeasuredTensor("sum", dtypes.FP32, (1,))


def model(*inputs: MeasuredTensor, batch: int = 0) -> MeasuredModel:
    return MeasuredModel("M", "", inputs, (SUM,), max_batch_size=batch)


def read(found: MeasuredModel, *sources: str, **fields):
    settings = DataSettings(**({"sources": sources} if sources else {}), **fields)
    return read_inputs(found, settings)


def from_json(tmp_path, found: MeasuredModel, document, **fields):
    path = tmp_path / "data.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read(found, str(path), **fields)


def only(data):
    assert [len(stream) for stream in data.streams] == [1]
    return data.streams[0][0]


def test_random_values_are_small_and_the_same_for_a_seed():
    first = only(read(model(A, TOKENS, TEXT), shapes={"tokens": (50,)}, seed=7))
    again = only(read(model(A, TOKENS, TEXT), shapes={"tokens": (50,)}, seed=7))

    assert ((first.tensors["a"] >= 0) & (first.tensors["a"] < 1)).all()
    assert ((first.tensors["tokens"] >= 0) & (first.tensors["tokens"] < 100)).all()
    assert first.tensors["tokens"].dtype == np.int32
    assert len(first.tensors["text"][0]) == 128
    assert first.tensors["text"][0] == again.tensors["text"][0]
    assert first.datatypes == {"a": "FP32", "tokens": "INT32", "text": "BYTES"}


def test_optional_inputs_are_not_made_up():
    assert "maybe" not in only(read(model(A, MAYBE))).tensors


@pytest.mark.parametrize(
    "fields, expected", [({"string_length": 5}, 5), ({"string_data": "hello you"}, 9)]
)
def test_strings_have_the_chosen_length_or_text(fields, expected):
    text = only(read(model(TEXT), **fields)).tensors["text"][0]

    assert len(text) == expected
    assert isinstance(text, bytes)


def test_zeros_are_empty_strings_too():
    made = only(read(model(A, TEXT), "zero"))

    assert made.tensors["a"].tolist() == [0.0, 0.0]
    assert made.tensors["text"].tolist() == [b""]


def test_batch_repeats_the_values_along_a_first_axis():
    made = only(read(model(A, batch=8), batch_size=3))

    assert made.tensors["a"].shape == (3, 2)
    assert (made.tensors["a"] == made.tensors["a"][0]).all()


def test_varying_input_needs_a_shape_and_the_error_shows_one():
    with pytest.raises(DataError, match=r"input grid contains dynamic shape .* --shape grid:8,8"):
        read(model(GRID))


@pytest.mark.parametrize(
    "shapes, error",
    [
        ({"grid": (3,)}, r"--shape of input grid is \[3\], expected one that fits \[-1, -1\]"),
        ({"other": (3,)}, "--shape other: the model has no such input, expected one of grid"),
    ],
)
def test_wrong_shapes_are_refused(shapes, error):
    with pytest.raises(DataError, match=error):
        read(model(GRID), shapes=shapes)


def test_directory_has_a_file_for_each_input(tmp_path):
    (tmp_path / "a").write_bytes(np.array([1, 2], np.float32).tobytes())
    (tmp_path / "text").write_text("hello you\n")

    made = only(read(model(A, TEXT), str(tmp_path)))

    assert made.tensors["a"].tolist() == [1.0, 2.0]
    assert made.tensors["text"].tolist() == [b"hello you"]


@pytest.mark.parametrize(
    "name, content, error",
    [
        ("a", b"123", "has 3 bytes, expected 8 for input a: FP32"),
        ("other", b"", "expected the file .*a with the values of input a, found none"),
    ],
)
def test_directory_with_wrong_files_is_refused(tmp_path, name, content, error):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=error):
        read(model(A), str(tmp_path))


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        {"content": [1, 2]},
        {"content": [1, 2], "shape": [2]},
        {"b64": base64.b64encode(np.array([1, 2], np.float32).tobytes()).decode()},
        {"content": {"b64": base64.b64encode(np.array([1, 2], "<f4").tobytes()).decode()}},
    ],
)
def test_json_has_values_in_several_forms(tmp_path, value):
    made = only(from_json(tmp_path, model(A), {"data": [{"a": value}]}))

    assert made.tensors["a"].tolist() == [1.0, 2.0]
    assert made.tensors["a"].dtype == np.float32


def test_json_strings_are_texts_or_base64_with_lengths(tmp_path):
    raw = base64.b64encode(dtypes.encode_bytes([b"you"])).decode()
    data = {"data": [{"text": "hello"}, {"text": ["hi"]}, {"text": {"b64": raw}}]}

    stream = from_json(tmp_path, model(TEXT), data).streams[0]

    assert [each.tensors["text"].tolist() for each in stream] == [[b"hello"], [b"hi"], [b"you"]]


def test_json_gives_varying_inputs_their_shape(tmp_path):
    data = {
        "data": [
            {"tokens": [1, 2, 3], "grid": {"content": [1, 2, 3, 4], "shape": [4, 1]}},
            {"tokens": [1], "grid": [[1, 2], [3, 4]]},
        ]
    }

    first, second = from_json(tmp_path, model(TOKENS, GRID), data).streams[0]

    assert first.tensors["tokens"].shape == (3,)
    assert first.tensors["grid"].shape == (4, 1)
    assert second.tensors["grid"].tolist() == [[1, 2], [3, 4]]


def test_json_streams_and_several_files_are_appended(tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(json.dumps({"data": [[{"a": [1, 1]}, {"a": [2, 2]}], [{"a": [3, 3]}]]}))
    two.write_text(json.dumps({"data": [{"a": [4, 4]}]}))

    data = read(model(A), str(one), str(two))

    assert [len(stream) for stream in data.streams] == [2, 1, 1]
    assert data.is_given


def test_json_has_expected_outputs_and_optional_inputs(tmp_path):
    data = {"data": [{"a": [1, 2]}, {"a": [1, 1], "maybe": [True]}],
            "validation_data": [{"sum": [3]}, {"sum": [2]}]}  # fmt: skip

    first, second = from_json(tmp_path, model(A, MAYBE, batch=4), data).streams[0]

    assert first.expected is not None
    assert first.expected["sum"].tolist() == [[3.0]]
    assert "maybe" not in first.tensors
    assert second.tensors["maybe"].tolist() == [[True]]


def test_json_has_timestamps_of_a_schedule(tmp_path):
    data = {"data": [{"a": [1, 2], "timestamp": 0}, {"a": [1, 2], "timestamp": [12.5]}]}

    assert from_json(tmp_path, model(A), data).timestamps_ms == (0.0, 12.5)


@pytest.mark.parametrize(
    "document, error",
    [
        ("{", "data.json is not JSON"),
        ([], 'expected an object with a list "data"'),
        ({"data": []}, 'expected entries in "data", found none'),
        ({"data": [3]}, r"data\[0\]: expected an object with inputs, got int"),
        ({"data": [{"a": [1, 2]}, {}]}, r"data\[1\]: expected a value for input a, found none"),
        ({"data": [{"a": [1, 2], "z": 1}]}, r"data\[0\]: the model has no input z, expected one"),
        ({"data": [{"a": [1]}]}, r"data\[0\]: input a has 1 values, expected 2"),
        ({"data": [{"a": ["x", "y"]}]}, r"expected numbers for input a, got 'x'"),
        ({"data": [{"a": {"b64": "?"}}]}, "b64 of input a is not base64"),
        ({"data": [{"a": {"b64": "AAAA"}}]}, "has 3 bytes, expected a multiple of 4"),
        ({"data": [{"a": {"x": 1}}]}, r"expected content or b64 for input a, got \['x'\]"),
        ({"data": [{"a": {"content": [1, 2], "shape": [3]}}]}, r"has the shape \[3\], expected"),
        ({"data": [{"a": {"content": [1, 2], "shape": "x"}}]}, "expected a list of integers"),
        ({"data": [{"payload": []}]}, "payload belongs to other kinds of services"),
        ({"data": [[{"a": [1, 2]}], {"a": [1, 2]}]}, r"data\[1\]: expected a list of entries"),
        ({"data": [{"a": [1, 2]}], "validation_data": []}, "has 0 entries, expected 1"),
        ({"data": [{"a": [1, 2]}], "validation_data": [{"q": 1}]}, "no output q"),
        ({"data": [{"a": [1, 2], "timestamp": "x"}]}, "expected milliseconds as timestamp"),
        (
            {"data": [{"a": [1, 2], "timestamp": 1}, {"a": [1, 2]}]},
            "expected a timestamp in every entry",
        ),
    ],
)
def test_json_that_does_not_fit_is_refused_with_its_place(tmp_path, document, error):
    with pytest.raises(DataError, match=error):
        from_json(tmp_path, model(A), document)


@pytest.mark.parametrize("values", [[300], [1.5], [-1, 2**40]])
def test_json_numbers_that_do_not_fit_the_datatype_are_refused(tmp_path, values):
    narrow = MeasuredTensor("tokens", dtypes.UINT8, (-1,))

    with pytest.raises(DataError, match="values of input tokens do not fit UINT8"):
        from_json(tmp_path, model(narrow), {"data": [{"tokens": values}]})


def test_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.json cannot be read"):
        read(model(A), str(tmp_path / "none.json"))
