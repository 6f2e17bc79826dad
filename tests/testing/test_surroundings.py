# SPDX-License-Identifier: Apache-2.0
"""What a model in a harness can reach: other models, logs, metrics, control of models."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pytriton.testing import ModelHarness


def run(execute, **models):
    """Run `execute` as a model with no inputs; gives the harness and what it returned."""
    results = []

    class Model:
        def execute(self, requests):
            result = execute()
            results.append(asyncio.run(result) if asyncio.iscoroutine(result) else result)
            return [pb_utils.InferenceResponse()]

    harness = ModelHarness(Model, models=models)
    with harness:
        harness.execute({})
    return harness, results[0]


def call(model_name="target", outputs=(), *, decoupled=False, **details):
    request = pb_utils.InferenceRequest(
        inputs=[pb_utils.Tensor("A", np.array([1, 2]))],
        requested_output_names=list(outputs),
        model_name=model_name,
        **details,
    )
    return request.exec(decoupled=decoupled)


def values(response):
    return {tensor.name(): tensor.as_numpy().tolist() for tensor in response.output_tensors()}


def test_function_stands_in_for_a_model():
    _, response = run(call, target=lambda inputs: {"B": inputs["A"] + 1})

    assert not response.has_error()
    assert values(response) == {"B": [2, 3]}


def test_only_wanted_outputs_come_back():
    _, response = run(
        lambda: call(outputs=["C"]), target=lambda inputs: {"B": inputs["A"], "C": inputs["A"]}
    )

    assert list(values(response)) == ["C"]


def test_calls_are_noted():
    harness, _ = run(
        lambda: call(request_id="7", parameters={"k": 1}), target=lambda inputs: inputs
    )

    (request,) = harness.calls
    assert (request.model_name, request.request_id()) == ("target", "7")
    assert request.parameters() == '{"k":1}'


def test_function_may_answer_with_an_error():
    error = pb_utils.TritonError("busy", pb_utils.TritonError.UNAVAILABLE)
    _, response = run(call, target=lambda _: error)

    assert response.error() is error


def test_function_that_raises_is_an_error_response():
    def target(inputs):
        raise ValueError("broken")

    _, response = run(call, target=target)

    assert "Failed to process the request(s) for model 'target_0'" in response.error().message()
    assert "ValueError: broken" in response.error().message()


def test_unknown_model_is_an_error_response():
    _, response = run(lambda: call("nope"))

    assert response.error().message() == (
        "Model nope - Error when running inference: Request for unknown model: 'nope' is not found"
    )
    assert response.error().code() == pb_utils.TritonError.INTERNAL


def count_to_three(inputs):
    for number in range(3):
        yield {"B": np.array([number])}


def test_generator_stands_in_for_a_decoupled_model():
    _, responses = run(lambda: list(call(decoupled=True)), target=count_to_three)

    assert [values(response) for response in responses] == [{"B": [0]}, {"B": [1]}, {"B": [2]}, {}]


def test_generator_that_raises_ends_with_an_error():
    def target(inputs):
        yield {"B": inputs["A"]}
        raise ValueError("broken")

    _, responses = run(lambda: list(call(decoupled=True)), target=target)

    assert [response.has_error() for response in responses] == [False, True]


def test_decoupled_model_must_be_called_so():
    _, response = run(call, target=count_to_three)

    assert "Please use 'decoupled=True' argument" in response.error().message()


def test_other_models_may_be_called_as_decoupled_ones():
    _, responses = run(lambda: list(call(decoupled=True)), target=lambda inputs: {"B": inputs["A"]})

    assert [values(response) for response in responses] == [{"B": [1, 2]}]


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "dropped"])
def test_call_that_is_given_up_ends(is_cancelled):
    ended = []

    def target(inputs):
        try:
            while True:
                yield {"B": inputs["A"]}
        finally:
            ended.append(True)

    def execute():
        responses = call(decoupled=True)
        next(responses)
        if is_cancelled:
            responses.cancel()
        return list(responses) if is_cancelled else []

    _, rest = run(execute, target=target)

    assert ended == [True]
    assert [values(response) for response in rest] == [{}] * is_cancelled


def test_calls_may_be_awaited():
    async def execute():
        request = pb_utils.InferenceRequest(
            inputs=[], requested_output_names=[], model_name="target"
        )
        return await asyncio.gather(request.async_exec(), request.async_exec())

    _, responses = run(execute, target=lambda _: {"B": np.array([5])})

    assert [values(response) for response in responses] == [{"B": [5]}, {"B": [5]}]


@pytest.mark.parametrize("method", ["initialize", "finalize"])
def test_models_are_called_during_execute_only(method):
    class Model:
        def initialize(self, args):
            if method == "initialize":
                call()

        def finalize(self):
            if method == "finalize":
                call()

    with (
        pytest.raises(
            pb_utils.TritonModelException,
            match=r"^BLS is only supported during the 'execute' function\.$",
        ),
        ModelHarness(Model, models={"target": lambda inputs: inputs}),
    ):
        assert method == "finalize"


def test_logs_are_noted():
    def execute():
        pb_utils.Logger.log_warn("careful")
        pb_utils.Logger.log("more", pb_utils.Logger.VERBOSE)

    harness, _ = run(execute)

    assert [(line.level, line.message) for line in harness.logs] == [
        ("WARNING", "careful"),
        ("VERBOSE", "more"),
    ]
    assert harness.logs[0].file == "test_surroundings.py"


def test_metrics_have_values():
    class Model:
        def initialize(self, args):
            self.families = [
                pb_utils.MetricFamily("count", "", pb_utils.MetricFamily.COUNTER),
                pb_utils.MetricFamily("sizes", "", pb_utils.MetricFamily.HISTOGRAM),
            ]
            self.count = self.families[0].Metric(labels={"b": "2", "a": "1"})
            self.sizes = self.families[1].Metric(buckets=[1, 10])

        def execute(self, requests):
            self.count.increment(3)
            assert self.count.value() == 3
            self.sizes.observe(5)
            return [pb_utils.InferenceResponse()]

        def finalize(self):
            self.count = None

    harness = ModelHarness(Model)
    with harness:
        harness.execute({})

        assert harness.metrics == {
            'count{a="1",b="2"}': 3,
            "sizes_count": 1,
            "sizes_sum": 5,
            'sizes_bucket{le="1"}': 0,
            'sizes_bucket{le="10"}': 1,
            'sizes_bucket{le="+Inf"}': 1,
        }
    assert 'count{a="1",b="2"}' not in harness.metrics


@pytest.mark.parametrize(
    "name, labels, text",
    [("a b", {}, "Invalid metric name"), ("a", {"b c": ""}, "Invalid label name")],
)
def test_metrics_that_a_server_refuses_are_refused(name, labels, text):
    def execute():
        family = pb_utils.MetricFamily(name, "", pb_utils.MetricFamily.GAUGE)
        family.Metric(labels=labels)

    with pytest.raises(pb_utils.TritonModelException, match=f"message: {text}"):
        run(execute)


def test_models_are_loaded_and_unloaded():
    def execute():
        states = [pb_utils.is_model_ready("target")]
        pb_utils.unload_model("target")
        states.append(pb_utils.is_model_ready("target"))
        assert call().has_error()
        pb_utils.load_model("target")
        states.append(pb_utils.is_model_ready("target"))
        return states

    _, states = run(execute, target=lambda inputs: inputs)

    assert states == [True, False, True]


def test_model_without_a_function_is_not_loaded():
    with pytest.raises(
        pb_utils.TritonModelException, match=r"Failed to load model: .*no function of this name"
    ):
        run(lambda: pb_utils.load_model("other"), target=lambda inputs: inputs)
