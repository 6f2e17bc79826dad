# SPDX-License-Identifier: Apache-2.0
"""What the page on binding models promises, asked of a real server."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tests.guides import http_calls

pytestmark = [pytest.mark.guide, pytest.mark.e2e]

SCALAR = Tensor(dtype=np.float32, shape=(1,))
ONE = np.ones((1, 1), np.float32)


@pytest.fixture
def triton(ports):
    with Triton(config=TritonConfig(**ports)) as running:
        yield running


@pytest.fixture
def bind(triton, ports):
    """Binds a model with one scalar in and out unless told otherwise; gives its HTTP port."""

    def bind(infer_func, name="Model", **settings):
        defaults = {
            "inputs": [SCALAR],
            "outputs": [SCALAR],
            "config": ModelConfig(max_batch_size=8),
        }
        triton.bind(model_name=name, infer_func=infer_func, **{**defaults, **settings})
        return ports["http_port"]

    return bind


@batch
def double(INPUT_1):  # noqa: N803  the name that the server gives an unnamed input
    return {"OUTPUT_1": INPUT_1 * 2}


class Doubler:
    @batch
    def __call__(self, **inputs):
        return [array * 2 for array in inputs.values()]

    def method(self, requests):
        return [{"OUTPUT_1": request["INPUT_1"] * 2} for request in requests]


@pytest.mark.parametrize(
    "infer_func",
    [
        double,
        Doubler(),
        Doubler().method,
        lambda requests: [{"OUTPUT_1": request["INPUT_1"] * 2} for request in requests],
    ],
    ids=["function", "object", "method", "lambda"],
)
def test_any_callable_can_be_bound(bind, infer_func):
    port = bind(infer_func)

    assert http_calls.infer(port, "Model", INPUT_1=ONE) == (200, {"OUTPUT_1": [2.0]})


def test_bound_model_is_available_under_its_name(bind):
    port = bind(double, name="my.model-1")

    assert http_calls.get(port, "/v2/models/my.model-1/ready")[0] == 200
    assert http_calls.get(port, "/v2/models/my.model-1")[1]["name"] == "my.model-1"
    assert http_calls.get(port, "/v2/models/other/ready")[0] != 200


def test_callable_gets_request_dictionaries_of_arrays(bind):
    seen = []

    def infer(requests):
        seen.extend(requests)
        return [{"OUTPUT_1": request["INPUT_1"]} for request in requests]

    port = bind(infer)
    http_calls.infer(port, "Model", INPUT_1=ONE)

    (request,) = seen
    assert list(request.keys()) == ["INPUT_1"]
    assert isinstance(request["INPUT_1"], np.ndarray)
    assert request["INPUT_1"].dtype == np.float32


def test_identity_lambda_gives_back_its_requests(bind):
    # Names have to agree for this to be an answer; the guide leaves both to their defaults.
    tensor = Tensor(name="x", dtype=np.float32, shape=(1,))
    port = bind(lambda requests: requests, inputs=[tensor], outputs=[tensor])

    assert http_calls.infer(port, "Model", x=ONE) == (200, {"x": [1.0]})


def test_list_of_callables_makes_instances_that_work_at_once(bind):
    meeting = threading.Barrier(2, timeout=http_calls.DEADLINE_S)

    def wait_for_the_other(requests):
        meeting.wait()
        return [{"OUTPUT_1": request["INPUT_1"]} for request in requests]

    config = ModelConfig(max_batch_size=1)
    port = bind([wait_for_the_other, functools.partial(wait_for_the_other)], config=config)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(http_calls.infer, port, "Model", INPUT_1=ONE) for _ in range(2)]

    assert [call.result()[0] for call in calls] == [200, 200]
    groups = http_calls.get(port, "/v2/models/Model/config")[1]["instance_group"]
    assert sum(group["count"] for group in groups) == 2


def test_list_of_callables_is_called_alternately(bind):
    calls = []

    def model_on(device):
        def infer(requests):
            calls.append(device)
            return [{"OUTPUT_1": request["INPUT_1"]} for request in requests]

        return infer

    port = bind([model_on(device) for device in ("cuda", "cpu")])
    for _ in range(14):  # one client after another
        assert http_calls.infer(port, "Model", INPUT_1=ONE)[0] == 200

    assert "".join(calls) in ("cudacpu" * 7, "cpucuda" * 7)


def test_unnamed_tensors_are_numbered(bind):
    port = bind(
        double,
        inputs=[Tensor(dtype=np.float32, shape=(-1,))],
        outputs=[Tensor(dtype=np.float32, shape=(-1,)), Tensor(dtype=np.int32, shape=(-1,))],
    )

    metadata = http_calls.get(port, "/v2/models/Model")[1]

    assert metadata["inputs"] == [{"name": "INPUT_1", "datatype": "FP32", "shape": [-1, -1]}]
    assert metadata["outputs"] == [
        {"name": "OUTPUT_1", "datatype": "FP32", "shape": [-1, -1]},
        {"name": "OUTPUT_2", "datatype": "INT32", "shape": [-1, -1]},
    ]


def test_named_tensor_of_fixed_shape_takes_no_other(bind):
    image = Tensor(name="image", dtype=np.float32, shape=(2, 2, 3))
    port = bind(
        batch(lambda image: {"OUTPUT_1": image.sum(axis=(1, 2, 3))[:, None]}), inputs=[image]
    )

    fitting = http_calls.infer(port, "Model", image=np.ones((1, 2, 2, 3), np.float32))
    other = http_calls.infer(port, "Model", image=np.ones((1, 2, 2, 4), np.float32))

    assert fitting == (200, {"OUTPUT_1": [12.0]})
    assert other[0] == 400
    assert "image" in other[1]


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), "float32"], ids=repr)
def test_dtype_may_be_a_type_a_dtype_or_a_name(bind, dtype):
    tensor = Tensor(dtype=dtype, shape=(1,))
    port = bind(double, inputs=[tensor], outputs=[tensor])

    assert http_calls.infer(port, "Model", INPUT_1=ONE) == (200, {"OUTPUT_1": [2.0]})
    assert http_calls.get(port, "/v2/models/Model")[1]["inputs"][0]["datatype"] == "FP32"


@batch
def wrong_type(**inputs):
    return {"OUTPUT_1": np.array([[3]], np.int64)}


def test_strict_refuses_an_output_of_another_type(bind):
    port = bind(wrong_type, strict=True)

    status, error = http_calls.infer(port, "Model", INPUT_1=ONE)

    assert status == 500
    assert "OUTPUT_1" in error


def test_output_of_another_type_is_converted_unless_strict(bind):
    port = bind(wrong_type)

    assert http_calls.infer(port, "Model", INPUT_1=ONE) == (200, {"OUTPUT_1": [3.0]})
