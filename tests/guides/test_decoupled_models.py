# SPDX-License-Identifier: Apache-2.0
"""What the page on decoupled models promises: of its repeat and square models, and of ensembles."""

from __future__ import annotations

import pathlib
import queue
import textwrap

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.e2e.waiting import DEADLINE_S, eventually
from tests.ensemble_differential.text_format import Step, ensemble, tensor
from tests.guides.conftest import guides_folder
from tests.repository_e2e.server_process import starter
from tests.snippets import snippets

pytestmark = [pytest.mark.guide, pytest.mark.e2e]

PAGE = guides_folder() / "decoupled_models.zh.md"
EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "decoupled"
DECOUPLED = "model_transaction_policy { decoupled: true }"
IDENTITY = textwrap.dedent(
    """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

        def answer(self, array):
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
    """
)
# Sends each number in a response of its own, and its configuration does not say so.
UNDECLARED = textwrap.dedent(
    """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for number in request.inputs()[0].as_numpy():
                    output = pb_utils.Tensor("OUT", np.array([number], np.int32))
                    sender.send(pb_utils.InferenceResponse([output]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
)


def plain_config() -> str:
    return (
        f'backend: "python"\ninput [ {tensor("IN")} ]\noutput [ {tensor("OUT")} ]\n'
        "instance_group [ { kind: KIND_CPU } ]\n"
    )


def example(name: str) -> dict[str, str]:
    """A model of the example, as its page copies it."""
    return {
        "1/model.py": (EXAMPLE / f"{name}_model.py").read_text(),
        "config.pbtxt": (EXAMPLE / f"{name}_config.pbtxt").read_text(),
    }


def repeating(more: dict[str, str], *steps: Step, outputs: list[str]) -> dict[str, str]:
    """An ensemble that begins with the repeat model, which gives EACH."""
    inputs = [tensor("IN"), tensor("DELAY", "UINT32"), tensor("WAIT", "UINT32", "1")]
    first = Step(
        "repeat_int32", {"IN": "IN", "DELAY": "DELAY", "WAIT": "WAIT"}, {"OUT": "EACH", **more}
    )
    return {"1/.keep": "", "config.pbtxt": ensemble(inputs, outputs, [first, *steps], DECOUPLED)}


ONE_OUT = tensor("OUT", dims="1")
MODELS = {
    "repeat_int32": example("repeat"),
    "square_int32": example("square"),
    "identity_int32": {"1/model.py": IDENTITY, "config.pbtxt": plain_config()},
    "undeclared": {"1/model.py": UNDECLARED, "config.pbtxt": plain_config()},
    "simple_repeat": repeating(
        {"IDX": "IDX"}, outputs=[tensor("EACH", dims="1"), tensor("IDX", "UINT32", "1")]
    ),
    "sequence_repeat": repeating(
        {}, Step("identity_int32", {"IN": "EACH"}, {"OUT": "OUT"}), outputs=[tensor("OUT")]
    ),
    "fan_repeat": repeating(
        {},
        Step("identity_int32", {"IN": "EACH"}, {"OUT": "OUT"}),
        Step("identity_int32", {"IN": "EACH"}, {"OUT": "OTHER"}),
        outputs=[tensor("OUT"), tensor("OTHER")],
    ),
    "repeat_square": repeating(
        {}, Step("square_int32", {"IN": "EACH"}, {"OUT": "OUT"}), outputs=[ONE_OUT]
    ),
    "nested_square": {
        "1/.keep": "",
        "config.pbtxt": ensemble(
            [tensor("IN"), tensor("DELAY", "UINT32"), tensor("WAIT", "UINT32", "1")],
            [ONE_OUT],
            [
                Step(
                    "repeat_square",
                    {"IN": "IN", "DELAY": "DELAY", "WAIT": "WAIT"},
                    {"OUT": "OUT"},
                )
            ],
        ),
    },
}
# By the output that has the repeated number; each gives as many responses as there are numbers.
REPEATING = {
    "repeat_int32": "OUT",
    "simple_repeat": "EACH",
    "sequence_repeat": "OUT",
    "fan_repeat": "OUT",
}
SQUARING = ("repeat_square", "nested_square")
STREAMING_ONLY = (*REPEATING, *SQUARING, "square_int32")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with starter(tmp_path_factory.mktemp("decoupled")) as start:
        yield start(MODELS).await_ready()


class Stream:
    """A bidirectional stream: what is sent on it, and what comes back, one by one."""

    def __init__(self, client) -> None:
        self.client = client
        self._answers: queue.Queue = queue.Queue()
        client.start_stream(lambda result, error: self._answers.put((result, error)))

    def send(self, model, numbers, delays=None, request_id="1", **options) -> None:
        self.client.async_stream_infer(
            model, inputs_of(triton_grpc, model, numbers, delays), request_id=request_id, **options
        )

    def next(self):
        return self._answers.get(timeout=DEADLINE_S)

    def until_final(self):
        """The responses with outputs, up to the one that says that it is the last."""
        results = []
        while True:
            result, error = self.next()
            assert error is None, error
            response = result.get_response()
            if response.outputs:
                results.append(result)
            if response.parameters["triton_final_response"].bool_param:
                return results

    def is_silent(self) -> bool:
        return self._answers.empty()


@pytest.fixture
def stream(server):
    with server.grpc_client() as client:
        yield Stream(client)
        client.stop_stream()


def inputs_of(client, model, numbers, delays=None):
    arrays = {"IN": np.array(numbers, np.int32)}
    if model not in ("square_int32", "identity_int32", "undeclared"):
        pauses = [0] * len(numbers) if delays is None else delays
        arrays["DELAY"] = np.array(pauses, np.uint32)
        arrays["WAIT"] = np.array([0], np.uint32)
    types = {"int32": "INT32", "uint32": "UINT32"}
    tensors = []
    for name, array in arrays.items():
        made = client.InferInput(name, list(array.shape), types[array.dtype.name])
        made.set_data_from_numpy(array)
        tensors.append(made)
    return tensors


@pytest.mark.parametrize("numbers", [[], [7], [4, 2, 0, 1]], ids=["zero", "one", "many"])
@pytest.mark.parametrize("model", REPEATING)
def test_each_number_is_a_response_in_its_order_and_one_is_final(stream, model, numbers):
    stream.send(model, numbers, enable_empty_final_response=True)
    results = stream.until_final()

    assert [result.as_numpy(REPEATING[model]).tolist() for result in results] == [
        [number] for number in numbers
    ]
    assert stream.is_silent()


@pytest.mark.parametrize("numbers", [[], [1], [0], [2, 0, 3]])
@pytest.mark.parametrize("model", SQUARING)
def test_decoupled_step_after_another_multiplies_responses(stream, model, numbers):
    stream.send(model, numbers, enable_empty_final_response=True)
    results = stream.until_final()

    # The square model answers on threads, so the responses of its requests may mix.
    expected = [number for number in numbers for _ in range(number)]
    assert sorted(result.as_numpy("OUT").item() for result in results) == expected
    assert stream.is_silent()


def test_positions_of_responses_pass_through_an_ensemble(stream):
    stream.send("simple_repeat", [9, 8, 7], enable_empty_final_response=True)

    assert [result.as_numpy("IDX").item() for result in stream.until_final()] == [0, 1, 2]


def test_two_steps_take_each_response(stream):
    stream.send("fan_repeat", [9, 8, 7], enable_empty_final_response=True)
    results = stream.until_final()

    assert [result.as_numpy("OUT").item() for result in results] == [9, 8, 7]
    assert [result.as_numpy("OTHER").item() for result in results] == [9, 8, 7]


@pytest.mark.parametrize("model", STREAMING_ONLY)
def test_empty_final_response_is_not_sent_unless_asked_for(stream, model):
    stream.send(model, [0] if model == "square_int32" else [], request_id="silent")
    stream.send(model, [1], request_id="heard", enable_empty_final_response=True)
    results = stream.until_final()

    assert [result.get_response().id for result in results] == ["heard"]
    assert stream.is_silent()


@pytest.mark.parametrize("model", REPEATING)
def test_request_with_many_responses_does_not_hold_up_others(stream, model):
    stream.send(model, [1, 2], [0, 1000], request_id="slow")
    result, error = stream.next()
    assert (error, result.get_response().id) == (None, "slow")
    stream.send(model, [3, 4], request_id="quick")
    order = [stream.next()[0].get_response().id for _ in range(3)]

    assert order == ["quick", "quick", "slow"]


@pytest.mark.parametrize("model", STREAMING_ONLY)
def test_plain_http_refuses_what_is_decoupled(server, model):
    with server.http_client() as client, pytest.raises(InferenceServerException) as refused:
        client.infer(model, inputs_of(triton_http, model, [1]))

    assert refused.value.message() == (
        "HTTP end point doesn't support models with decoupled transaction policy"
    )


@pytest.mark.parametrize("model", STREAMING_ONLY)
def test_model_infer_refuses_what_is_decoupled(server, model):
    with server.grpc_client() as client, pytest.raises(InferenceServerException) as refused:
        client.infer(model, inputs_of(triton_grpc, model, [1]))

    assert refused.value.status() == "StatusCode.UNIMPLEMENTED"
    assert refused.value.message() == (
        "ModelInfer RPC doesn't support models with decoupled transaction policy"
    )


@pytest.mark.parametrize("model", [*REPEATING, *SQUARING])
def test_wrong_shape_is_an_error_of_the_request_only(stream, model):
    stream.send(model, [[1, 2]], [[0, 0]])
    _, error = stream.next()
    assert f"for model '{model}'. Expected [-1], got [1,2]." in error.message()

    stream.send(model, [1], enable_empty_final_response=True)
    assert len(stream.until_final()) == 1


@pytest.mark.parametrize("model", [*REPEATING, *SQUARING])
def test_error_of_the_model_comes_with_the_names_of_the_ensembles_around_it(stream, model):
    stream.send(model, [1, 2], [0])
    _, error = stream.next()

    around = {
        "repeat_int32": "",
        "nested_square": "in ensemble 'nested_square', in ensemble 'repeat_square', ",
    }.get(model, f"in ensemble '{model}', ")
    assert error.message().startswith(around)
    assert "expected IN and DELAY shape to match" in error.message()
    assert error.message().count("in ensemble") == around.count("in ensemble")


def test_decoupled_model_without_the_policy_fails_when_it_sends_nothing(server):
    with server.http_client() as client, pytest.raises(InferenceServerException) as refused:
        client.infer("undeclared", inputs_of(triton_http, "undeclared", []))

    assert refused.value.status() == "500"
    assert "Non-decoupled model cannot send complete final before" in refused.value.message()


def test_decoupled_model_without_the_policy_fails_when_it_sends_twice(server):
    with server.http_client() as client:
        client.infer("undeclared", inputs_of(triton_http, "undeclared", [1, 2]))

    assert eventually(
        lambda: "Non-decoupled model cannot send more than one response" in server.output
    )


def test_configuration_of_an_ensemble_tells_that_it_is_decoupled(server):
    for model in (*REPEATING, *SQUARING):
        config = server.get(f"/v2/models/{model}/config").json
        assert config["model_transaction_policy"] == {"decoupled": True}, model


@pytest.mark.skipif(not PAGE.exists(), reason="the guides are not beside this checkout")
@pytest.mark.parametrize("model", ["repeat_int32", "sequence_repeat", "repeat_square"])
def test_block_of_the_page_opts_in_to_the_empty_final_response(stream, model):
    """The dots of the page stand for the model, its inputs and the like."""
    (block,) = snippets(PAGE, "python")

    class Client:
        def async_stream_infer(self, dots, **options):
            assert dots is Ellipsis
            stream.send(model, [], **options)

    exec(textwrap.dedent(block.text), {"client": Client()})
    result, error = stream.next()

    assert error is None
    assert list(result.get_response().outputs) == []
    assert result.get_response().parameters["triton_final_response"].bool_param
