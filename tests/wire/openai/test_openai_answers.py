# SPDX-License-Identifier: Apache-2.0
"""What the responses of models say, and the documents and events that clients get of it."""

from __future__ import annotations

import json

import pytest

from pytriton.base.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
    UnsupportedError,
)
from pytriton.protocol.openai import answers
from pytriton.protocol.openai.answers import ChoiceAnswer, Delta, Gathered
from pytriton.protocol.openai.documents import AnswerHead, ChoiceEvents, Usage, encode_answer
from pytriton.protocol.openai.errors import from_server_error
from tests.wire.openai.openai_specs import response

CHAT = AnswerHead("chatcmpl-1", 5, 'a "model"', True)
COMPLETION = AnswerHead("cmpl-1", 5, "m", False)


def read(answer, *responses):
    deltas = []
    for each in responses:
        deltas.append(answer.feed(each))
        if answer.is_done:
            return deltas
    return [*deltas, answer.finish()]


def texts(deltas):
    return [delta.text for delta in deltas]


def gathered(deltas):
    whole = Gathered()
    for delta in deltas:
        whole.add(delta)
    return whole


# Reading


def test_text_comes_in_pieces_and_ends_with_a_reason():
    answer = ChoiceAnswer("text")

    deltas = read(answer, response(text="one "), response(text=["two", " three"]))

    assert deltas == [Delta("one "), Delta("two three"), Delta("", None, None, "stop")]
    assert answer.completion_tokens == 2


def test_character_that_comes_in_two_pieces_is_whole():
    first, second = "ü€".encode()[:3], "ü€".encode()[3:]

    deltas = read(ChoiceAnswer("text"), response(text=first), response(text=second))

    assert texts(deltas) == ["ü", "€", ""]


def test_bytes_that_are_no_text_are_replaced():
    deltas = read(ChoiceAnswer("text"), response(text=b"a\xffb"), response(text=b"\xe2\x82"))

    assert texts(deltas) == ["a�b", "", "�"]


def test_text_is_cut_at_stop_strings():
    answer = ChoiceAnswer("text", stops=("END",))

    deltas = read(answer, response(text="one E"), response(text="ND two"), response(text="three"))

    assert deltas == [Delta("one "), Delta("", None, None, "stop")]


def test_text_before_half_a_stop_string_is_not_lost_at_the_end():
    assert texts(read(ChoiceAnswer("text", stops=("END",)), response(text="one EN"))) == [
        "one ",
        "EN",
    ]


def test_answer_ends_after_so_many_responses():
    answer = ChoiceAnswer("text", ("b!",), 2, ends_at_limit=True)

    deltas = read(answer, response(text="a"), response(text="b"), response(text="c"))

    assert deltas == [Delta("a"), Delta("b", None, None, "length")]


@pytest.mark.parametrize("count, expected", [(1, "stop"), (2, "length")])
def test_model_that_ends_itself_at_its_limit_says_so(count, expected):
    deltas = read(ChoiceAnswer("text", (), 2), *[response(text="a")] * count)

    assert deltas[-1].finish_reason == expected


@pytest.mark.parametrize("said, expected", [("length", "length"), ("None", "stop"), ("", "stop")])
def test_model_may_say_why_it_ended(said, expected):
    deltas = read(ChoiceAnswer("text"), response(text="a", finish_reason=said))

    assert deltas[-1].finish_reason == expected


@pytest.mark.parametrize("names", [("prompt_tokens", "completion_tokens"),
                                   ("num_input_tokens", "num_output_tokens")])  # fmt: skip
def test_tokens_that_the_model_counts_are_used(names):
    answer = ChoiceAnswer("text")
    read(answer, *(response(**{"text": "a", names[0]: 7, names[1]: 2}) for _ in range(3)))

    assert (answer.prompt_tokens, answer.completion_tokens) == (7, 6)


@pytest.mark.parametrize("numbers, expected", [([7, 0, 0], 7), ([3, 7, 0], 7), ([0, 0], 0)])
def test_tokens_of_the_prompt_are_the_last_number_that_was_set(numbers, expected):
    answer = ChoiceAnswer("text")
    read(answer, *(response(text="a", prompt_tokens=number) for number in numbers))

    assert answer.prompt_tokens == expected


def test_tokens_of_a_model_that_answers_at_once_are_not_guessed():
    answer = ChoiceAnswer("text", counts_responses=False)
    read(answer, response(text="one two"))

    assert answer.completion_tokens == 0


def test_tool_calls_get_what_clients_expect():
    calls = [
        {"name": "clock", "arguments": {"zone": "UTC"}},
        {"id": "x", "type": "function", "function": {"name": "sun", "arguments": "{}"}},
    ]

    whole = gathered(read(ChoiceAnswer("text"), response(text="", tool_calls=json.dumps(calls))))

    first, second = whole.tool_calls()
    assert first.pop("id").startswith("call_")
    assert first == {
        "type": "function",
        "function": {"name": "clock", "arguments": '{"zone":"UTC"}'},
    }
    assert second == calls[1]
    assert whole.finish_reason == "tool_calls"


def test_parts_of_tool_calls_are_joined():
    parts = [
        [{"index": 0, "id": "x", "function": {"name": "f", "arguments": '{"a"'}}],
        [{"index": 0, "function": {"arguments": ":1}"}}],
    ]

    deltas = read(ChoiceAnswer("text"), *(response(tool_calls=json.dumps(each)) for each in parts))

    assert deltas[1].tool_calls == [{"index": 0, "function": {"arguments": ":1}"}}]
    assert gathered(deltas).tool_calls() == [
        {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]


@pytest.mark.parametrize("text", ["", "[]", " "])
def test_no_tool_calls_are_none(text):
    deltas = read(ChoiceAnswer("text"), response(text="a", tool_calls=text))

    assert (deltas[0].tool_calls, deltas[-1].finish_reason) == (None, "stop")


@pytest.mark.parametrize(
    "outputs",
    [
        {"tool_calls": "{"},
        {"tool_calls": '{"name": "f"}'},
        {"tool_calls": "[1]"},
        {"tool_calls": '[{"index": [1]}]'},
        {"tool_calls": '[{"index": "a"}]'},
        {"tool_calls": '[{"function": "f"}]'},
        {"logprobs": "["},
        {"logprobs": "[1]"},
        {"logprobs": '[{"token": "a"}]'},
        {"logprobs": "[{}]"},
        {"completion_tokens": "two"},
    ],
)
def test_output_that_is_malformed_is_an_error_of_the_model(outputs):
    with pytest.raises(InternalError, match="expected"):
        ChoiceAnswer("text", wants_logprobs=True).feed(response(text="a", **outputs))


def test_endless_answer_is_an_error(monkeypatch):
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 3)
    answer = ChoiceAnswer("text")
    answer.feed(response(text="abc"))

    with pytest.raises(InternalError, match="expected an answer of at most 3 bytes, got 4"):
        answer.feed(response(text="d"))


# Log probabilities

OWN = [{"token": "é", "logprob": -1, "top_logprobs": [{"token": "x", "logprob": -0.5}]}]
VLLM = [{"7": {"logprob": -1, "rank": 2, "decoded_token": "é"}, "8": -0.5}]


@pytest.mark.parametrize("given, top", [(OWN, ["x"]), (VLLM, ["é", "8"])], ids=["own", "vllm"])
def test_log_probabilities_have_the_forms_of_both_routes(given, top):
    deltas = read(
        ChoiceAnswer("text", wants_logprobs=True), response(text="é", logprobs=json.dumps(given))
    )
    chat, completion = (
        json.loads(encode_answer(kind, [gathered(deltas)], Usage()))["choices"][0]["logprobs"]
        for kind in (CHAT, COMPLETION)
    )

    token = chat["content"][0]
    assert (token["token"], token["logprob"], token["bytes"]) == ("é", -1.0, [195, 169])
    assert [each["token"] for each in token["top_logprobs"]] == top
    assert completion["tokens"] == ["é"]
    assert completion["token_logprobs"] == [-1.0]
    assert list(completion["top_logprobs"][0]) == top
    assert completion["text_offset"] == [0]


def test_log_probabilities_that_nobody_wants_are_left_out():
    deltas = read(ChoiceAnswer("text"), response(text="a", logprobs="not even JSON"))

    assert deltas[0] == Delta("a")


# Writing


def events(raw: bytes) -> list[dict]:
    assert raw == b"" or raw.endswith(b"\n\n")
    return [json.loads(each.removeprefix(b"data: ")) for each in raw.split(b"\n\n")[:-1]]


def test_whole_chat_answer():
    whole = gathered([Delta("one "), Delta("two", None, None, "stop")])

    assert json.loads(encode_answer(CHAT, [whole], Usage(3, 2))) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 5,
        "model": 'a "model"',
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "one two", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def test_events_of_a_chat():
    writer = ChoiceEvents(CHAT, 1, has_usage=True)
    raw = writer.first() + writer.next(Delta('a"')) + writer.next(Delta())
    raw += writer.next(Delta("b", None, None, "stop"))

    found = events(raw)
    assert all(
        {key: each[key] for key in ("id", "object", "created", "model", "usage")}
        == {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 5,
            "model": 'a "model"',
            "usage": None,
        }
        for each in found
    )
    choices = [choice for each in found for choice in each["choices"]]
    assert [choice["index"] for choice in choices] == [1] * 4
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": 'a"'},
        {"content": "b"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]


def test_events_of_a_completion_count_characters():
    writer = ChoiceEvents(COMPLETION, 0, has_usage=False)
    token = {"token": "b", "logprob": -1.0, "bytes": [98], "top_logprobs": []}
    raw = writer.first("abc") + writer.next(Delta("de")) + writer.next(Delta("b", None, [token]))
    raw += writer.next(Delta("", None, None, "length"))

    found = events(raw)
    choices = [each["choices"][0] for each in found]
    assert [each["object"] for each in found] == ["text_completion"] * 4
    assert "usage" not in found[0]
    assert [choice["text"] for choice in choices] == ["abc", "de", "b", ""]
    assert choices[2]["logprobs"]["text_offset"] == [5]
    assert choices[3]["finish_reason"] == "length"


def test_tool_calls_of_a_stream_have_indices():
    call = {"index": 0, "id": "x", "type": "function", "function": {"name": "f"}}
    writer = ChoiceEvents(CHAT, 0, has_usage=False)

    (event,) = events(writer.next(Delta("", [call])))

    assert event["choices"][0]["delta"] == {"tool_calls": [call]}


@pytest.mark.parametrize(
    "error, status, code, header",
    [
        (UnavailableError("[request id: a] Exceeds maximum queue size"), 429,
         "rate_limit_exceeded", b"Retry-After: 1\r\n"),
        (ResourceExhaustedError("too many", 7), 429, "rate_limit_exceeded",
         b"Retry-After: 7\r\n"),
        (UnavailableError("Server exiting"), 503, "unavailable", b"Retry-After: 1\r\n"),
        (InternalError("it broke"), 500, "model_error", b"x-should-retry: false\r\n"),
        (NotFoundError("no such model"), 404, "model_not_found", b""),
        (CancelledError(""), 499, "cancelled", b""),
        (InvalidArgumentError("wrong"), 400, None, b""),
        (UnsupportedError("cannot"), 400, None, b""),
    ],
)  # fmt: skip
def test_errors_of_the_engine_have_openais_form(error, status, code, header):
    found = from_server_error(error)

    assert (found.status, found.code, found.headers) == (status, code, header)
    body = json.loads(found.body())["error"]
    assert body.keys() == {"message", "type", "param", "code"}
    assert body["message"] == error.message or status == 499
