# SPDX-License-Identifier: Apache-2.0
"""A backend that uses the server as vLLM's does: streams, cancellation, metrics, odd values.

`tests/vllm_stand_in` has its code. `scripts/test` runs this with front ends in processes, too.
"""

from __future__ import annotations

import http.client
import json
import queue
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.e2e.http_client import call
from tests.e2e.waiting import DEADLINE_S, eventually

FLAGS = [
    f"--backend-directory={Path(__file__).parents[1] / 'vllm_stand_in'}",
    "--model-control-mode=explicit",
]


def model(
    arguments: dict | None = None, settings: str = "", parameter: str = "", value: str = "true"
) -> dict[str, str]:
    text = f'backend: "vllm" instance_group [{{ count: 1 kind: KIND_MODEL }}] {settings}\n'
    if parameter:
        text += f'parameters {{ key: "{parameter}" value {{ string_value: "{value}" }} }}'
    return {"config.pbtxt": text, "1/model.json": json.dumps(arguments or {})}


SLOW = {"delay_s": 0.02}
MODELS = {
    "quick": model(),
    "slow": model(SLOW),
    "leaving": model(SLOW),
    "measured": model(parameter="REPORT_CUSTOM_METRICS"),
    "talking": model(SLOW, parameter="openai", value="chat,completions"),
    "sick": model({"is_healthy": False}, parameter="ENABLE_VLLM_HEALTH_CHECK"),
}


@pytest.fixture(scope="module")
def server(start_module_server):
    loads = [f"--load-model={name}" for name in MODELS]
    return start_module_server(MODELS, flags=[*FLAGS, *loads]).await_ready()


@pytest.fixture(scope="module")
def openai_client(server):
    openai = pytest.importorskip("openai")
    url = f"http://127.0.0.1:{server.http_port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
        yield client


def generate(server, name="quick", text="hello you", **parameters):
    return server.post(
        f"/v2/models/{name}/generate", {"text_input": text, "parameters": parameters}
    )


def events(server, **parameters):
    """The answers of a stream over HTTP."""
    answer = server.post(
        "/v2/models/quick/generate_stream",
        {"text_input": "hello you", "parameters": {"stream": True, **parameters}},
    )
    lines = answer.body.decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


class GrpcStream:
    """A stream of one request, and what came of it."""

    def __init__(self, client, name, text, parameters, *flags):
        self.answers = queue.Queue()
        self._client = client
        client.start_stream(lambda result, error: self.answers.put((result, error)))
        prompt = triton_grpc.InferInput("text_input", [1], "BYTES")
        prompt.set_data_from_numpy(np.array([text.encode()], np.object_))
        inputs = [prompt]
        for flag in ("stream", *flags):
            inputs.append(triton_grpc.InferInput(flag, [1], "BOOL"))
            inputs[-1].set_data_from_numpy(np.array([True]))
        client.async_stream_infer(
            name, inputs, parameters=parameters, enable_empty_final_response=True
        )

    def next(self):
        """The next answer: its tensors by name, and whether it is the last; or its error."""
        result, error = self.answers.get(timeout=DEADLINE_S)
        if error is not None:
            return error.message(), True
        response = result.get_response()
        tensors = {each.name: result.as_numpy(each.name) for each in response.outputs}
        return tensors, response.parameters["triton_final_response"].bool_param

    def rest(self):
        """All answers to the last one."""
        answers = []
        is_last = False
        while not is_last:
            answer, is_last = self.next()
            answers.append(answer)
        return answers


def test_text_is_generated_by_tokens_of_a_loop_in_a_thread(server):
    answer = generate(server, stream=False, max_tokens=3, temperature=0.5)

    assert answer.json == {
        "model_name": "quick",
        "model_version": "1",
        "text_output": "hello you 0 1 2",
    }


def test_inputs_may_come_as_parameters_and_parameters_as_an_input(server):
    excluded = generate(server, exclude_input_in_output=True)
    sampled = generate(server, sampling_parameters='{"max_tokens": 1}')

    assert excluded.json["text_output"] == " 0 1 2 3"
    assert sampled.json["text_output"] == "hello you 0"


def test_only_outputs_that_were_asked_for_are_there(server):
    answer = generate(
        server,
        max_tokens=2,
        return_finish_reason=True,
        return_cumulative_logprob=True,
        return_logprobs=True,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
    ).json

    assert answer == {
        "model_name": "quick",
        "model_version": "1",
        "text_output": "hello you 0 1",
        "finish_reason": "length",
        "cumulative_logprob": -1.0,
        "logprobs": '[{"1": -0.5}]',
        "num_input_tokens": 2,
        "num_output_tokens": 2,
    }


def test_stream_over_http_has_an_event_for_each_token(server):
    texts = events(server, max_tokens=3, return_num_output_tokens=True)

    assert [(each["text_output"], each["num_output_tokens"]) for each in texts] == [
        (" 0", 1),
        (" 1", 1),
        (" 2", 1),
    ]


def test_stream_over_grpc_ends_with_its_last_token(server):
    with server.grpc_client() as client:
        stream = GrpcStream(client, "quick", "hi", {"max_tokens": 3}, "return_num_input_tokens")
        answers = stream.rest()
        client.stop_stream()

    assert [each["text_output"].tolist() for each in answers] == [[b" 0"], [b" 1"], [b" 2"]]
    assert [each["num_input_tokens"].shape for each in answers] == [()] * 3  # as it was made


@pytest.mark.parametrize(
    "parameters, expected",
    [
        ({"max_tokens": 0}, "Error generating: max_tokens must be at least 1, got 0."),
        ({"lora_name": "x"}, "there is no adapter x"),
    ],
)
def test_error_beside_tensors_is_the_answer(server, parameters, expected):
    answer = generate(server, **parameters)

    assert (answer.status, answer.error) == (500, expected)
    with server.grpc_client() as client:
        assert GrpcStream(client, "quick", "hi", parameters).rest() == [expected]


def test_error_of_a_stream_is_an_event(server):
    assert events(server, exclude_input_in_output=False) == [
        {"error": "Error generating: the prompt cannot be in a stream"}
    ]


def test_many_requests_run_side_by_side(server):
    with server.grpc_client() as first, server.grpc_client() as second:
        streams = [
            GrpcStream(client, "slow", "side", {"max_tokens": 30}) for client in (first, second)
        ]
        answers = [stream.next()[0]["text_output"].tolist() for stream in streams]
        rest = [stream.rest() for stream in streams]

    assert answers == [[b" 0"], [b" 0"]]
    assert [len(each) for each in rest] == [29, 29]


def test_cancelled_stream_stops_the_engine(server):
    with server.grpc_client() as client:
        stream = GrpcStream(client, "slow", "cancelled-stream", {"max_tokens": 100000})
        stream.next()
        client.stop_stream(cancel_requests=True)

    assert eventually(lambda: "stand-in cancelled cancelled-stream" in server.output)


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_client_that_goes_away_stops_the_engine(server, path):
    prompt = f"gone-from-{path}"
    parameters = {"stream": path == "generate_stream", "max_tokens": 100000}
    body = json.dumps({"text_input": prompt, "parameters": parameters})
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
    connection.request("POST", f"/v2/models/slow/{path}", body)
    if path == "generate_stream":
        assert connection.getresponse().read(5) == b"data:"
    assert eventually(lambda: f"stand-in generates for {prompt}" in server.output)
    connection.close()

    assert eventually(lambda: f"stand-in cancelled {prompt}" in server.output)


def test_openais_client_gets_answers_of_the_engine(openai_client):
    answer = openai_client.chat.completions.create(
        model="talking",
        messages=[{"role": "user", "content": "hello you"}],
        max_tokens=3,
        logprobs=True,
        extra_body={"ignored_by_the_toy": 1},
    )

    (choice,) = answer.choices
    assert choice.message.content == " 0 1 2"
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 3
    assert answer.usage.prompt_tokens > 0
    assert choice.logprobs.content[0].logprob == -0.5


def test_openais_client_streams_from_the_engine(openai_client):
    chunks = list(
        openai_client.completions.create(
            model="talking",
            prompt="hello you",
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    texts = [choice.text for chunk in chunks for choice in chunk.choices]
    assert [text for text in texts if text] == [" 0", " 1", " 2", " 3"]
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 4


def test_openais_client_that_goes_away_stops_the_engine(server, openai_client):
    with openai_client.completions.create(
        model="talking", prompt="left-by-openai", max_tokens=100000, stream=True
    ) as stream:
        next(stream)

    assert eventually(lambda: "stand-in cancelled left-by-openai" in server.output)


def test_metrics_have_the_names_of_the_engine(server):
    generate(server, "measured", max_tokens=3)
    labels = '{model="measured",version="1"'

    def page():
        return call(server.metrics_port, "/metrics").body.decode()

    for line in (
        f"vllm:prompt_tokens_total{labels}}} 2",
        f"vllm:generation_tokens_total{labels}}} 3",
        f'vllm:request_generation_tokens_bucket{labels},le="2"}} 0',
        f'vllm:request_generation_tokens_bucket{labels},le="4"}} 1',
    ):
        assert eventually(lambda line=line: line in page()), line
    assert page().count("# TYPE vllm:") == 8


def test_model_whose_engine_is_ill_unloads_itself(server):
    answer = generate(server, "sick")

    assert (answer.status, answer.error) == (503, "the engine is not healthy")
    assert eventually(lambda: server.index()["sick"]["state"] == "UNAVAILABLE")
    assert server.index()["sick"]["reason"] == "unloaded"


def test_unloaded_model_finishes_its_streams_and_then_itself(server):
    with server.grpc_client() as client:
        stream = GrpcStream(client, "leaving", "late", {"max_tokens": 30})
        stream.next()
        assert server.unload("leaving").status == 200
        answers = stream.rest()

    assert [each["text_output"].tolist() for each in answers][-1] == [b" 29"]
    assert eventually(lambda: server.index()["leaving"]["state"] == "UNAVAILABLE")
    assert eventually(lambda: "stand-in is finalized" in server.output)


def test_server_that_ends_lets_senders_work_while_models_are_finalized(start_server):
    loads = ["--load-model=slow", "--exit-timeout-secs=1"]
    server = start_server({"slow": model(SLOW)}, flags=[*FLAGS, *loads]).await_ready()
    with server.grpc_client() as client:
        stream = GrpcStream(client, "slow", "long", {"max_tokens": 100000})
        stream.next()
        server.signal()
        answer = stream.rest()[-1]
        server.exit_code()

    assert isinstance(answer, str)
    assert "stand-in finalizes" in server.output
    assert "stand-in is finalized" in server.output
    assert "could not send" not in server.output
