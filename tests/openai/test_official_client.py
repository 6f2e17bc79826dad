# SPDX-License-Identifier: Apache-2.0
"""OpenAI's own client on a real server: sync, async, streams, errors, cancellation.

`scripts/test` runs this with front ends in processes, too.
"""

from __future__ import annotations

import asyncio
import threading
import urllib.parse
import urllib.request

import pytest

from tests.e2e.waiting import DEADLINE_S, eventually
from tests.openai.conftest import TOKEN


@pytest.fixture(scope="module")
def openai():
    """Imported only by the process that runs these tests: it takes more than a second."""
    return pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(openai, models):
    with openai.OpenAI(
        base_url=f"{models.url}/v1", api_key=TOKEN, max_retries=0, timeout=DEADLINE_S
    ) as made:
        yield made


def user(content):
    return [{"role": "user", "content": content}]


def text_of(chunks):
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_models_are_listed(client):
    names = [each.id for each in client.models.list()]

    assert names == ["broken", "busy", "endless", "tools", "typed", "upper", "vectors"]
    assert client.models.retrieve("typed").object == "model"


def test_chat_with_a_typed_generator(client):
    answer = client.chat.completions.create(
        model="typed", messages=user("one two three"), max_completion_tokens=2, temperature=0.5
    )

    assert answer.choices[0].message.content == "one two "
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 2
    assert answer._request_id.startswith("req_")


def test_stream_with_usage_and_two_choices(client):
    chunks = list(
        client.chat.completions.create(
            model="typed",
            messages=user("one two"),
            stream=True,
            stream_options={"include_usage": True},
            n=2,
        )
    )

    said = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
    assert said == {0: "one two ", 1: "one two "}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == 4


def test_helper_of_the_client_gathers_a_stream(client):
    with client.chat.completions.stream(model="typed", messages=user("one two")) as stream:
        kinds = {event.type for event in stream}
        whole = stream.get_final_completion()

    assert "content.delta" in kinds
    assert whole.choices[0].message.content == "one two "


def test_completions_of_several_prompts(client):
    answer = client.completions.create(model="upper", prompt=["a", "b"], echo=True)

    assert [choice.text for choice in answer.choices] == ["aA", "bB"]


def test_stop_string_ends_an_endless_model(client, models):
    answer = client.completions.create(model="endless", prompt="until-stop", stop=[" 5"])

    assert answer.choices[0].text == "0 1 2 3 4"
    assert answer.choices[0].finish_reason == "stop"
    assert eventually(lambda: "until-stop" in models.closed)


def test_tools_are_passed_through(client):
    tools = [{"type": "function", "function": {"name": "clock", "parameters": {}}}]

    answer = client.chat.completions.create(model="tools", messages=user("time?"), tools=tools)
    without = client.chat.completions.create(
        model="tools", messages=user("time?"), tools=tools, tool_choice="none"
    )
    streamed = client.chat.completions.create(
        model="tools", messages=user("time?"), tools=tools, stream=True
    )

    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("clock", '{"zone":"UTC"}')
    assert answer.choices[0].finish_reason == "tool_calls"
    assert without.choices[0].message.content == "no tools"
    deltas = [chunk.choices[0].delta.tool_calls for chunk in streamed]
    assert [each[0].function.name for each in deltas if each] == ["clock"]


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings(client, encoding):
    more = {} if encoding is None else {"encoding_format": encoding}

    answer = client.embeddings.create(model="vectors", input=["a b", "c", "d e f"], **more)

    assert [each.index for each in answer.data] == [0, 1, 2]
    if encoding != "base64":
        assert [each.embedding for each in answer.data] == [[3, 1], [1, 0], [5, 2]]


def test_raw_response_has_headers(client):
    raw = client.chat.completions.with_raw_response.create(
        model="typed", messages=user("hi"), extra_headers={"X-Request-Id": "mine"}
    )

    assert raw.headers["x-request-id"] == "mine"
    assert raw.parse().choices[0].message.content == "hi "


def test_parsed_answers_need_a_model_that_knows_formats(openai, client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="typed", messages=user("hi"), response_format={"type": "json_object"}
        )

    assert (caught.value.param, caught.value.code) == ("response_format", "unsupported_parameter")


# Errors


@pytest.mark.parametrize(
    "ask, kind",
    [
        (lambda c: c.chat.completions.create(model="no", messages=user("x")), "NotFoundError"),
        (lambda c: c.chat.completions.create(model="typed", messages=[]), "BadRequestError"),
        (lambda c: c.completions.create(model="typed", prompt="x"), "NotFoundError"),
        (lambda c: c.completions.create(model="upper", prompt=[1, 2]), "BadRequestError"),
        (
            lambda c: c.completions.create(model="upper", prompt="x", max_tokens=1),
            "BadRequestError",
        ),
        (lambda c: c.models.retrieve("no"), "NotFoundError"),
        (lambda c: c.completions.create(model="broken", prompt="at once"), "InternalServerError"),
        (lambda c: c.responses.create(model="typed", input="x"), "NotFoundError"),
    ],
)
def test_errors_have_their_classes(openai, client, ask, kind):
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client)

    assert type(caught.value).__name__ == kind
    assert caught.value.body["message"]


def test_error_of_a_model_is_not_repeated(openai, client):
    with pytest.raises(openai.InternalServerError, match="it broke at once") as caught:
        client.with_options(max_retries=5).completions.create(model="broken", prompt="at once")

    assert caught.value.response.headers["x-should-retry"] == "false"


def test_error_in_a_stream_is_raised_after_what_came_before(openai, client):
    stream = client.completions.create(model="broken", prompt="x", stream=True)
    said = next(stream).choices[0].text
    with pytest.raises(openai.APIError, match="it broke") as caught:
        next(stream)

    assert said == "so far "
    assert caught.value.code == "model_error"


def test_wrong_key_is_refused(openai, models):
    with (
        openai.OpenAI(base_url=f"{models.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.chat.completions.create(model="typed", messages=user("hi"))

    assert caught.value.code == "invalid_api_key"


def test_full_queue_is_a_rate_limit_and_the_client_comes_again(openai, client, models):
    def ask(prompt, results):
        results.append(client.completions.create(model="busy", prompt=prompt).choices[0].text)

    results: list[str] = []
    threads = [threading.Thread(target=ask, args=(name, results)) for name in ("a", "b")]
    threads[0].start()
    assert models.started.acquire(timeout=DEADLINE_S)
    threads[1].start()
    assert eventually(lambda: _pending(models) == 1)
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="busy", prompt="c")
    later = threading.Timer(0, models.release.set)
    later.start()
    again = client.with_options(max_retries=60).completions.create(model="busy", prompt="d")
    for thread in (*threads, later):
        thread.join(DEADLINE_S)

    assert caught.value.response.headers["retry-after"] == "1"
    assert sorted(results) == ["a", "b"]
    assert again.choices[0].text == "d"


def _pending(models) -> int:
    with urllib.request.urlopen(f"{models.metrics_url}/metrics") as page:
        lines = page.read().decode().splitlines()
    name = 'nv_inference_pending_request_count{model="busy",version="1"} '
    return int(float(next(line for line in lines if line.startswith(name)).removeprefix(name)))


# Cancellation


def test_stream_that_is_closed_ends_the_model(client, models):
    with client.completions.create(model="endless", prompt="closed", stream=True) as stream:
        assert next(iter(stream)).choices[0].text == "0 "

    assert eventually(lambda: "closed" in models.closed)


def test_timeout_of_the_client_ends_the_model(openai, client, models):
    timeout_s = 0.25
    while "slow" not in models.asked:  # on a busy machine the model may begin too late
        timeout_s *= 2
        with pytest.raises(openai.APITimeoutError):
            client.completions.create(model="endless", prompt="slow", timeout=timeout_s)

    assert eventually(lambda: "slow" in models.closed)


# Async


def test_async_client_streams_side_by_side(openai, models):
    async def ask(client, number):
        stream = await client.chat.completions.create(
            model="typed", messages=user(f"this is {number}"), stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=f"{models.url}/v1", api_key=TOKEN) as client:
            whole = await client.chat.completions.create(model="typed", messages=user("hi"))
            return whole, await asyncio.gather(*(ask(client, number) for number in range(8)))

    whole, answers = asyncio.run(ask_all())

    assert whole.choices[0].message.content == "hi "
    assert answers == [f"this is {number} " for number in range(8)]


# Without the client
