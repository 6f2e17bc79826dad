# SPDX-License-Identifier: Apache-2.0
"""Controls and states of sequences, as a model.py gets and returns them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.repository_e2e.model_files import model

SUM = 'state [{ input_name: "SUM" output_name: "NEXT" data_type: TYPE_FP32 dims: [ 1 ] %s }]'
INITIAL = 'initial_state { name: "first" data_type: TYPE_FP32 dims: [ 1 ] data_file: "first" }'


CONTROLS = """
control_input [
  { name: "START" control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 3, 9 ] }] },
  { name: "END" control [{ kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] }] },
  { name: "READY" control [{ kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] }] },
  { name: "CORRID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: %s }] }
]"""
MODEL = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x, state = (self.read(request, name) for name in ("X", "SUM"))
        {}
        outputs = [pb_utils.Tensor("Y", np.asarray(y, np.float32).reshape(x.shape))]
        if state is not None:
            outputs.append(pb_utils.Tensor("NEXT", np.asarray(state)))
        return pb_utils.InferenceResponse(outputs)

    def read(self, request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return None if tensor is None else tensor.as_numpy()
"""
ACCUMULATE = MODEL.format("state = y = x + state")


# The first sequence of an instance sees what its warm-up saw.
REMEMBER = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.seen = []

    def execute(self, requests):
        batch = []
        for request in requests:
            values = [f"{each.name()}={each.as_numpy().item()}" for each in request.inputs()]
            details = f"id={request.correlation_id()} flags={request.flags()}"
            batch.append(f"{' '.join(values)} {details}".encode())
        self.seen.append(batch)
        text = np.array([[b"|".join(b", ".join(batch) for batch in self.seen)]], object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("T", text)]) for _ in requests]
"""
DECOUPLED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            total = pb_utils.get_input_tensor_by_name(request, "SUM").as_numpy()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            sender = request.get_response_sender()
            for _ in range(2):
                total = total + x
                outputs = [pb_utils.Tensor("Y", total), pb_utils.Tensor("NEXT", total)]
                sender.send(pb_utils.InferenceResponse(outputs))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
WARMUP = """model_warmup [{
    name: "w" batch_size: 2
    inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }
}]"""


def stateful(code, batching, max_batch_size=4, more="", output=None, **files):
    output = output or '{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }'
    settings = f"""backend: "python" max_batch_size: {max_batch_size}
        input [{{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }}]
        output [ {output} ]
        sequence_batching {{ max_sequence_idle_microseconds: 60000000 {batching} }} {more}"""
    return model(code, settings, **files)


@pytest.fixture(scope="module")
def server(start_module_server):
    text = '{ name: "T" data_type: TYPE_STRING dims: [ 1 ] }'
    oldest = "oldest { max_candidate_sequences: 16 } "
    repository = {
        "direct": stateful(ACCUMULATE, SUM % ""),
        "oldest": stateful(ACCUMULATE, oldest + SUM % ""),
        "unbatched": stateful(ACCUMULATE, SUM % "", 0),
        "decoupled": stateful(
            DECOUPLED, SUM % "", more="model_transaction_policy { decoupled: true }"
        ),
        "numbers": stateful(REMEMBER, CONTROLS % "TYPE_INT64", output=text),
        "warm": stateful(REMEMBER, CONTROLS % "TYPE_UINT64" + SUM % "", more=WARMUP, output=text),
    }
    return start_module_server(repository).await_ready()


@pytest.fixture(params=["http", "grpc"])
def send(server, request):
    """Sends a request of a sequence over either protocol; returns the arrays of its response."""
    library, port = triton_http, server.http_port
    if request.param == "grpc":
        library, port = triton_grpc, server.grpc_port
    client = library.InferenceServerClient(f"127.0.0.1:{port}")

    def send_one(name, value, sequence_id, *, start=False, end=False, outputs=None):
        array = np.full((1,) if name == "unbatched" else (1, 1), value, np.float32)
        tensor = library.InferInput("X", array.shape, "FP32")
        tensor.set_data_from_numpy(array)
        result = client.infer(
            name,
            [tensor],
            outputs=outputs and [library.InferRequestedOutput(each) for each in outputs],
            sequence_id=sequence_id,
            sequence_start=start,
            sequence_end=end,
        )
        document = result.get_response()
        if request.param == "grpc":
            names = [output.name for output in document.outputs]
        else:
            names = [output["name"] for output in document["outputs"]]
        return {each: result.as_numpy(each).ravel().tolist() for each in names}

    yield send_one
    client.close()


def facts(answer):
    """Returns inputs and details of the requests of each execution so far."""
    (text,) = answer["T"]
    return text.decode().split("|")


@pytest.mark.parametrize("name", ["direct", "oldest", "unbatched"])
def test_states_are_passed_on_in_their_sequence(send, name):
    answers = [
        send(name, 5, 71, start=True),
        send(name, 1, 71),
        send(name, 7, 72, start=True) if name != "unbatched" else send(name, 1, 71),
        send(name, 1, 71, end=True),
        send(name, 2, 71, start=True, end=True),
    ]
    expected = [5, 6, 7, 7, 2] if name != "unbatched" else [5, 6, 7, 8, 2]

    assert answers == [{"Y": [value]} for value in expected]
    if name != "unbatched":
        send(name, 0, 72, end=True)


def test_states_of_a_decoupled_model(server):
    results = []
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: results.append(error or result.as_numpy("Y")))
        for index in range(2):
            tensor = triton_grpc.InferInput("X", (1, 1), "FP32")
            tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
            client.async_stream_infer(
                "decoupled",
                [tensor],
                sequence_id=9,
                sequence_start=index == 0,
                sequence_end=index == 1,
            )
        client.stop_stream()

    assert [result.tolist() for result in results] == [[[1]], [[2]], [[3]], [[4]]]


def test_a_model_gets_its_controls(send, server):
    send("numbers", 0, 5, start=True)
    executions = facts(send("numbers", 0, 5, end=True))[-2:]

    assert executions == [
        "X=0.0 START=9 END=0.0 READY=True CORRID=5 id=5 flags=1",
        "X=0.0 START=3 END=1.0 READY=True CORRID=5 id=5 flags=2",
    ]
    metadata = json.loads(server.get("/v2/models/numbers").body)
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["X"]


def test_a_warm_up_has_controls_and_states(send):
    first = facts(send("warm", 1, 5, start=True, end=True))[0]
    request = "X=0.0 START=9 END=1.0 READY=True CORRID=1 SUM=0.0 id=1 flags=3"

    assert first == f"{request}, {request}"
