# SPDX-License-Identifier: Apache-2.0
import functools
import inspect

import numpy as np
import pytest

from pytriton.decorators import (
    batch,
    convert_output,
    first_value,
    get_inference_request_batch_size,
    group_by_keys,
    group_by_values,
    sample,
    whole_batch_callable,
)
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from pytriton.proxy.types import Request
from tests.decorators.binding import bound


def rows(*values):
    return np.array([[value] for value in values], dtype=np.float32)


def lists(responses):
    return [{name: array.tolist() for name, array in item.items()} for item in responses]


def add_sub(a, b):
    return {"x": a + b, "y": a - b}


class Model:
    def __init__(self, factor=1):
        self.factor = factor

    @batch
    def __call__(self, a):
        return [a * self.factor]

    @batch
    def method(self, a):
        return {"x": a * self.factor}


def test_batch_joins_inputs_and_splits_outputs():
    seen = []

    @batch
    def infer(**inputs):
        seen.append({name: array.shape for name, array in inputs.items()})
        return add_sub(**inputs)

    responses = infer(
        [Request({"a": rows(1, 2), "b": rows(3, 4)}), Request({"a": rows(5), "b": rows(6)})]
    )

    assert seen == [{"a": (3, 1), "b": (3, 1)}]
    assert lists(responses) == [
        {"x": [[4], [6]], "y": [[-2], [-2]]},
        {"x": [[11]], "y": [[-1]]},
    ]


def test_batch_passes_a_single_request_on_without_a_copy():
    array = rows(1, 2)

    ((response),) = batch(lambda a: {"x": a})([Request({"a": array})])

    assert response["x"] is array


def test_batch_takes_plain_dicts():
    assert lists(batch(lambda a: {"x": a})([{"a": rows(1)}, {"a": rows(2)}])) == [
        {"x": [[1]]},
        {"x": [[2]]},
    ]


def test_batch_keeps_other_arguments():
    @batch
    def infer(extra, a, option):
        return {"x": a + extra + option}

    assert lists(infer([Request({"a": rows(1)})], 10, option=100)) == [{"x": [[111]]}]


@pytest.mark.parametrize("kind", [list, tuple])
def test_batch_names_outputs_by_position(kind):
    infer = bound(batch(lambda a, b: kind([a + b, a - b])))

    assert lists(infer([Request({"a": rows(3), "b": rows(1)})])) == [{"x": [[4]], "y": [[2]]}]


def test_batch_of_objects_and_methods_finds_its_model():
    model = bound(Model(factor=2), outputs=["x"])

    assert lists(model([Request({"a": rows(3)})])) == [{"x": [[6]]}]
    assert lists(Model(factor=3).method([Request({"a": rows(3)})])) == [{"x": [[9]]}]


def test_batch_keeps_the_face_of_what_it_wraps():
    decorated = batch(add_sub)

    assert decorated.__name__ == "add_sub"
    assert decorated.__wrapped__ is add_sub
    assert inspect.signature(decorated) == inspect.signature(add_sub)


def test_batch_refuses_different_inputs():
    infer = batch(add_sub)

    expected = r"Cannot batch requests with different set of inputs keys.*\['a'\], got \['b'\]"
    with pytest.raises(PyTritonValidationError, match=expected):
        infer([Request({"a": rows(1)}), Request({"b": rows(1)})])


@pytest.mark.parametrize("output", [rows(1, 2, 3), np.array(1.0)])
def test_batch_refuses_outputs_of_another_size(output):
    infer = batch(lambda a: {"x": a, "y": output})

    with pytest.raises(ValueError, match="Received output tensors with different batch sizes") as e:
        infer([Request({"a": rows(1)}), Request({"a": rows(2)})])

    assert f"x: (2, 1), y: {output.shape}. Expected batch size: 2." in str(e.value)


def test_batch_refuses_values_that_are_no_arrays():
    with pytest.raises(ValueError, match="numpy arrays: output `x` is <class 'list'>"):
        batch(lambda a: {"x": a.tolist()})([Request({"a": rows(1)})])


def test_batch_refuses_another_number_of_outputs():
    infer = bound(batch(lambda a: [a]), outputs=["x", "y"])

    expected = r"Outputs length different than config outputs length: expected 2 \(x, y\), got 1"
    with pytest.raises(PyTritonValidationError, match=expected):
        infer([Request({"a": rows(1)})])


def test_batch_of_a_callable_that_is_not_bound_cannot_name_outputs():
    expected = "Wrapped function or object must bound with triton to get  __triton_context__"
    with pytest.raises(PyTritonValidationError, match=expected):
        batch(lambda a: [a])([Request({"a": rows(1)})])


@pytest.mark.parametrize("outputs", [None, 5, "text", rows(1)])
def test_batch_refuses_other_types(outputs):
    with pytest.raises(PyTritonValidationError, match="Unsupported output type <class"):
        batch(lambda a: outputs)([Request({"a": rows(1)})])


def test_batch_refuses_coroutines():
    @batch
    async def infer(a):
        return {"x": a}

    coroutines = []

    @batch
    def remember(a):
        coroutines.append(infer.__wrapped__(a))
        return coroutines[-1]

    with pytest.raises(PyTritonValidationError, match="Unsupported output type <class 'coroutine'"):
        remember([Request({"a": rows(1)})])
    coroutines[0].close()


def test_batch_splits_each_response_of_a_generator():
    @batch
    def infer(a):
        yield {"x": a}
        yield {"x": a * 2}

    assert inspect.isgeneratorfunction(infer)
    first, second = infer([Request({"a": rows(1)}), Request({"a": rows(2, 3)})])

    assert lists(first) == [{"x": [[1]]}, {"x": [[2], [3]]}]
    assert lists(second) == [{"x": [[2]]}, {"x": [[4], [6]]}]


def test_batch_closes_the_generator_that_it_splits():
    closed = []

    @batch
    def infer(a):
        try:
            yield {"x": a}
            yield {"x": a}
        finally:
            closed.append(True)

    responses = infer([Request({"a": rows(1)})])
    next(responses)
    responses.close()

    assert closed == [True]


def test_batch_counts_a_request_without_inputs_as_one_row():
    infer = batch(lambda: {"x": rows(1, 2)})

    assert lists(infer([Request({}), Request({})])) == [{"x": [[1]]}, {"x": [[2]]}]


def test_batch_size_is_that_of_the_first_input():
    assert get_inference_request_batch_size({"a": rows(1, 2), "b": rows(1)}) == 2


def test_outputs_take_names_from_a_given_config():
    config = TritonModelConfig("m", outputs=[TensorSpec("x", (1,), np.float32)])

    assert lists([convert_output((rows(1),), model_config=config)]) == [{"x": [[1]]}]


def test_outputs_without_callable_or_config_have_no_names():
    with pytest.raises(PyTritonValidationError, match="got neither"):
        convert_output([rows(1)])


@pytest.mark.parametrize("decorate", [lambda f: f, first_value("b"), group_by_values("a")])
def test_whole_batch_does_what_batch_does(decorate):
    infer = bound(batch(decorate(lambda a: {"x": a * 2})))

    whole = whole_batch_callable(infer)

    assert whole({"a": rows(1, 2)}, 2)["x"].tolist() == [[2], [4]]


def test_whole_batch_names_outputs_by_position():
    infer = bound(batch(lambda a, b: (a + b, a - b)))
    config = TritonModelConfig("m", outputs=[TensorSpec(n, (1,), np.float32) for n in "pq"])
    inputs = {"a": rows(3), "b": rows(1)}

    assert lists([whole_batch_callable(infer)(inputs, 1)]) == [{"x": [[4]], "y": [[2]]}]
    assert list(whole_batch_callable(infer, config)(inputs, 1)) == ["p", "q"]


def test_whole_batch_of_objects_and_methods():
    model = bound(Model(factor=2), outputs=["x"])

    assert lists([whole_batch_callable(model)({"a": rows(3)}, 1)]) == [{"x": [[6]]}]
    assert lists([whole_batch_callable(model.method)({"a": rows(4)}, 1)]) == [{"x": [[8]]}]
    assert lists([whole_batch_callable(model.__call__)({"a": rows(5)}, 1)]) == [{"x": [[10]]}]


def test_whole_batch_checks_what_batch_checks():
    whole = whole_batch_callable(batch(lambda a: {"x": rows(1)}))

    with pytest.raises(ValueError, match="Received output tensors with different batch sizes"):
        whole({"a": rows(1, 2)}, 2)
    with pytest.raises(PyTritonValidationError, match="Unsupported output type"):
        whole_batch_callable(batch(lambda a: None))({"a": rows(1)}, 1)


def _generator(a):
    yield {"x": a}


async def _coroutine(a):
    return {"x": a}


async def _async_generator(a):
    yield {"x": a}


class _GeneratorObject:
    def __call__(self, a):
        yield {"x": a}


@pytest.mark.parametrize(
    "infer_func",
    [
        add_sub,
        lambda requests: requests,
        sample(add_sub),
        group_by_keys(batch(add_sub)),
        batch(_generator),
        batch(_coroutine),
        batch(_async_generator),
        batch(_GeneratorObject()),
        batch(functools.partial(_generator)),
        functools.partial(batch(add_sub)),
        functools.wraps(batch(add_sub))(lambda requests: requests),
        _GeneratorObject(),
    ],
)
def test_other_callables_have_no_whole_batch(infer_func):
    assert whole_batch_callable(infer_func) is None


def test_sample_passes_the_first_request():
    infer = sample(lambda a: {"x": a})

    assert lists(infer([Request({"a": rows(1)}), Request({"a": rows(2)})])) == [{"x": [[1]]}]


def test_sample_names_outputs_by_position():
    infer = bound(sample(lambda a: [a]), outputs=["x"], batching=False)

    assert lists(infer([Request({"a": rows(1)})])) == [{"x": [[1]]}]


def test_sample_refuses_generators():
    with pytest.raises(PyTritonValidationError, match="Unsupported output type <class 'generator'"):
        sample(_generator)([Request({"a": rows(1)})])


def test_group_by_keys_calls_for_each_set_and_restores_the_order():
    calls = []

    @group_by_keys
    def infer(requests, extra):
        calls.append([sorted(request) for request in requests])
        return [{"x": next(iter(request.values())) + extra} for request in requests]

    responses = infer(
        [Request({"b": rows(1)}), Request({"a": rows(2)}), Request({"b": rows(3)})], 10
    )

    assert calls == [[["a"]], [["b"], ["b"]]]
    assert lists(responses) == [{"x": [[11]]}, {"x": [[12]]}, {"x": [[13]]}]


def test_group_by_keys_ignores_the_order_of_keys():
    infer = group_by_keys(batch(add_sub))

    responses = infer(
        [Request({"a": rows(1), "b": rows(2)}), Request({"b": rows(4), "a": rows(3)})]
    )

    assert [item["x"].tolist() for item in responses] == [[[3]], [[7]]]


def test_group_by_keys_wants_a_result_for_each_request():
    with pytest.raises(ValueError, match="shorter"):
        group_by_keys(lambda requests: [])([Request({"a": rows(1)})])
