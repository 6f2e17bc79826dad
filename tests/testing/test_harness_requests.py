# SPDX-License-Identifier: Apache-2.0
"""Requests to a model in a harness: what arrives, what comes back, and what is refused."""

from __future__ import annotations

import asyncio
import json
import threading

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pytriton.base.errors import InvalidArgumentError
from pytriton.testing import ModelHarness, Request, Response, ResponseError, RuleError
from tests.testing.doubling import Doubling, config, doubled

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def decoupled(**fields):
    return config(model_transaction_policy={"decoupled": True}, **fields)


def model_of(execute):
    """A model class of which only `execute` matters."""
    return type("Model", (), {"execute": lambda self, requests: execute(requests)})


def test_model_answers_a_request():
    with ModelHarness(Doubling, config()) as model:
        response = model.execute({"IN": np.array([1, 2], np.float32)})

    assert response["OUT"].tolist() == [2, 4]
    assert response.outputs["OUT"].dtype == np.float32
    assert response.parameters == {}
    assert response.error is None


def test_lists_become_arrays_of_the_configured_type():
    with ModelHarness(Doubling, config()) as model:
        assert model.execute({"IN": [1, 2]})["OUT"].dtype == np.float32


def test_model_cannot_change_the_tests_array():
    array = np.ones(2, np.float32)

    def execute(requests):
        requests[0].inputs()[0].as_numpy()[:] = 7
        return [doubled(requests[0])]

    with ModelHarness(model_of(execute), config()) as model:
        assert model.execute({"IN": array})["OUT"].tolist() == [14, 14]
    assert array.tolist() == [1, 1]


def test_tensors_are_reshaped_as_by_a_server():
    seen = []

    def execute(requests):
        (array,) = [tensor.as_numpy() for tensor in requests[0].inputs()]
        seen.append(array.shape)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array if array.any() else array[0])])
        ]

    tensors = [
        {"name": name, "data_type": "TYPE_FP32", "dims": [4], "reshape": {"shape": [2, 2]}}
        for name in ("IN", "OUT")
    ]
    reshaped = config(input=tensors[:1], output=tensors[1:])
    with ModelHarness(model_of(execute), reshaped) as model:
        response = model.execute({"IN": [1, 2, 3, 4]})
        ((too_short,),) = model.execute_batch([Request({"IN": [0, 0, 0, 0]})])

    assert seen[0] == (2, 2)
    assert response["OUT"].tolist() == [1, 2, 3, 4]
    assert too_short.error is not None
    assert (
        too_short.error.message() == "output tensor shape does not match size of output for 'OUT'"
    )


def test_texts_arrive_as_bytes_and_come_back_as_bytes():
    tensors = [{"name": name, "data_type": "TYPE_STRING", "dims": [-1]} for name in ("IN", "OUT")]

    def execute(requests):
        array = requests[0].inputs()[0].as_numpy()
        assert array.tolist() == [b"a", b"b"]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(["x", 5], object))])]

    with ModelHarness(model_of(execute), config(input=tensors[:1], output=tensors[1:])) as model:
        for texts in (["a", "b"], np.array(["a", b"b"], object), np.array([b"a", b"b"])):
            assert model.execute({"IN": texts})["OUT"].tolist() == [b"x", b"5"]


def test_model_gets_all_that_a_client_sends():
    seen = []

    def execute(requests):
        (request,) = requests
        seen.append(
            (
                request.request_id(),
                json.loads(request.parameters()),
                request.correlation_id(),
                request.flags(),
                request.timeout(),
                request.requested_output_names(),
            )
        )
        return [doubled(request)]

    with ModelHarness(model_of(execute), config()) as model:
        model.execute({"IN": [1]})
        model.execute(
            {"IN": [1]},
            id="7",
            parameters={"a": 1.5},
            correlation_id="s",
            flags=1,
            timeout_us=9,
            outputs=["OUT"],
        )

    assert seen == [
        ("", {}, 0, 0, 0, {"OUT"}),
        ("7", {"a": 1.5}, "s", 1, 9, {"OUT"}),
    ]


def test_requests_of_a_batch_are_answered_in_order():
    with ModelHarness(Doubling, config()) as model:
        answers = model.execute_batch([Request({"IN": [number]}) for number in range(3)])

    assert [response["OUT"].tolist() for (response,) in answers] == [[0], [2], [4]]


def test_outputs_that_nobody_asked_for_are_dropped():
    def execute(requests):
        tensors = [pb_utils.Tensor(name, np.zeros(1)) for name in ("OUT", "OTHER")]
        return [pb_utils.InferenceResponse(tensors)]

    with ModelHarness(model_of(execute), config()) as model:
        assert list(model.execute({"IN": [1]}).outputs) == ["OUT"]


def test_output_that_is_not_there_is_told_with_those_that_are():
    response = Response({"OUT": np.zeros(1), "MORE": np.zeros(1)})

    with pytest.raises(KeyError, match="UOT: the outputs of the response are OUT, MORE"):
        response["UOT"]


def test_error_in_a_response_is_raised():
    error = pb_utils.TritonError("busy", pb_utils.TritonError.UNAVAILABLE)
    model_class = model_of(lambda _: [pb_utils.InferenceResponse(error=error)])
    with (
        ModelHarness(model_class, config()) as model,
        pytest.raises(ResponseError, match=r"^busy$") as raised,
    ):
        model.execute({"IN": [1]})

    assert raised.value.error.code() == pb_utils.TritonError.UNAVAILABLE


def test_error_in_a_stream_is_raised_with_the_other_responses():
    def execute(requests):
        sender = requests[0].get_response_sender()
        output = pb_utils.Tensor("OUT", np.ones(1, np.float32))
        sender.send(pb_utils.InferenceResponse([output]))
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("busy")), FINAL)

    with (
        ModelHarness(model_of(execute), decoupled()) as model,
        pytest.raises(ResponseError, match="busy") as raised,
    ):
        model.stream({"IN": [1]})

    assert [each.error is None for each in raised.value.responses] == [True, False]


def test_error_of_a_batch_is_in_its_response():
    error = pb_utils.TritonError("busy", pb_utils.TritonError.UNAVAILABLE)
    with ModelHarness(
        model_of(lambda _: [pb_utils.InferenceResponse(error=error)]), config()
    ) as model:
        ((response,),) = model.execute_batch([Request({"IN": [1]})])

    assert response.error.code() == pb_utils.TritonError.UNAVAILABLE
    with pytest.raises(KeyError, match="the response is the error 'busy'"):
        response["OUT"]


def test_response_has_its_parameters():
    with ModelHarness(
        model_of(lambda _: [pb_utils.InferenceResponse([], parameters={"a": 1})]), config()
    ) as model:
        assert model.execute({"IN": [1]}).parameters == {"a": 1}


@pytest.mark.parametrize(
    "inputs, text",
    [
        ({}, "expected 1 inputs but got 0"),
        ({"OTHER": [1.0]}, "OTHER"),
        ({"IN": np.array([1])}, "INT64"),
        ({"IN": np.ones((1, 1), np.float32)}, "shape"),
    ],
)
def test_request_that_does_not_fit_is_refused_as_by_a_server(inputs, text):
    with (
        ModelHarness(Doubling, config()) as model,
        pytest.raises(InvalidArgumentError, match=text),
    ):
        model.execute(inputs)


def test_requests_to_a_model_without_a_configuration_are_not_checked():
    with ModelHarness(Doubling) as model:
        assert model.execute({"IN": np.array([3])})["OUT"].tolist() == [6]


def test_exception_of_the_model_reaches_the_test():
    def execute(requests):
        requests[0].get_response_sender()
        raise ValueError("broken")

    with (
        ModelHarness(model_of(execute), config()) as model,
        pytest.raises(ValueError, match="broken"),
    ):
        model.execute({"IN": [1]})


@pytest.mark.parametrize(
    "result, text",
    [
        ((), "Expected a list in the execute return"),
        ([], "size is:1, and InferenceResponse"),
        (["no response"], "Expected an 'InferenceResponse' object"),
    ],
)
def test_wrong_result_of_execute_is_refused(result, text):
    with (
        ModelHarness(model_of(lambda _: result), config()) as model,
        pytest.raises(RuleError, match=text),
    ):
        model.execute({"IN": [1]})


def test_responses_of_a_decoupled_model_are_a_list():
    def execute(requests):
        sender = requests[0].get_response_sender()

        def send():
            for _ in range(3):
                sender.send(doubled(requests[0]))
            sender.send(flags=FINAL)

        threading.Thread(target=send).start()

    with ModelHarness(model_of(execute), decoupled()) as model:
        responses = model.stream({"IN": [1]})

    assert [response["OUT"].tolist() for response in responses] == [[2], [2], [2]]


def test_decoupled_model_may_send_nothing():
    with ModelHarness(
        model_of(lambda requests: requests[0].get_response_sender().send(flags=FINAL)), decoupled()
    ) as model:
        assert model.stream({"IN": [1]}) == []


def test_decoupled_model_is_not_asked_for_one_response():
    with (
        ModelHarness(Doubling, decoupled()) as model,
        pytest.raises(RuleError, match="use `stream`"),
    ):
        model.execute({"IN": [1]})


def test_decoupled_model_returns_nothing():
    with (
        ModelHarness(Doubling, decoupled()) as model,
        pytest.raises(RuleError, match=r"'double_0' is using the decoupled mode"),
    ):
        model.stream({"IN": [1]})


@pytest.mark.parametrize("make_config", [config, decoupled])
def test_missing_final_flag_is_said(make_config):
    def execute(requests):
        requests[0].get_response_sender().send(doubled(requests[0]))

    with (
        ModelHarness(model_of(execute), make_config(), timeout_s=0.01) as model,
        pytest.raises(TimeoutError, match="TRITONSERVER_RESPONSE_COMPLETE_FINAL"),
    ):
        model.stream({"IN": [1]})


def test_client_gives_up_after_some_responses():
    def execute(requests):
        sender = requests[0].get_response_sender()
        while not sender.is_cancelled():
            sender.send(doubled(requests[0]))
        assert requests[0].is_cancelled()
        sender.send(flags=FINAL)

    with ModelHarness(model_of(execute), decoupled()) as model:
        assert len(model.stream({"IN": [1]}, cancel_after=3)) == 3
        assert model.stream({"IN": [1]}, cancel_after=0) == []


def test_coroutine_is_awaited():
    class Model:
        async def execute(self, requests):
            await asyncio.sleep(0)
            return [doubled(request) for request in requests]

    with ModelHarness(Model, config()) as model:
        assert model.execute({"IN": [1]})["OUT"].tolist() == [2]


def test_rescheduled_request_comes_again():
    flags = []

    def execute(requests):
        (request,) = requests
        flags.append(request.flags())
        if len(flags) < 3:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return [None]
        return [doubled(request)]

    iterative = config(sequence_batching={"iterative_sequence": True})
    with ModelHarness(model_of(execute), iterative) as model:
        assert model.execute({"IN": [1]}, flags=1)["OUT"].tolist() == [2]
    assert flags == [1, 0, 0]


def test_request_is_rescheduled_only_by_models_that_say_so():
    def execute(requests):
        requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    with (
        ModelHarness(model_of(execute), config()) as model,
        pytest.raises(RuleError, match="not configured to handle such a flag"),
    ):
        model.execute({"IN": [1]})


def test_one_harness_may_be_the_target_of_another():
    def execute(requests):
        pb_utils.Logger.log_info("outer")
        request = pb_utils.InferenceRequest(
            inputs=requests[0].inputs(), requested_output_names=["OUT"], model_name="inner"
        )
        response = request.exec()
        pb_utils.Logger.log_info("outer again")
        return [response]

    class Inner(Doubling):
        def execute(self, requests):
            pb_utils.Logger.log_info("inner")
            return super().execute(requests)

    with (
        ModelHarness(Inner, config()) as inner,
        ModelHarness(
            model_of(execute),
            config(),
            models={"inner": lambda given: inner.execute(given).outputs},
        ) as outer,
    ):
        assert outer.execute({"IN": [1]})["OUT"].tolist() == [2]
        assert [line.message for line in inner.logs] == ["inner"]
        assert [line.message for line in outer.logs] == ["outer", "outer again"]
