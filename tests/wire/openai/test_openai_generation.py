# SPDX-License-Identifier: Apache-2.0
"""Chat and completion requests as requests for a model, and which of them are refused."""

from __future__ import annotations

import json

import pytest

from pytriton.protocol.openai.errors import OpenAIError
from pytriton.protocol.openai.generation import (
    MAX_CHOICES,
    MAX_PARTS,
    check_served,
    read_generation,
)
from pytriton.protocol.openai.inputs import MAX_INPUT_BYTES
from pytriton.protocol.openai.members import MAX_MEMBER_BYTES, MAX_MEMBERS, DocumentMembers
from tests.wire.openai.openai_specs import (
    VLLM_INPUTS,
    VLLM_OUTPUTS,
    chat,
    members,
    spec,
    value_of,
    values,
)

PROMPT = {"prompt": "STRING [1]"}
MESSAGES = {"messages": "STRING [1]"}
TOOLS = [{"type": "function", "function": {"name": "clock"}}]


def read_chat(model, request=None, **more):
    return read_generation(request or chat(**more), model, is_chat=True)


def read_completion(model, **more):
    return read_generation(members(**{"prompt": "hi", **more}), model, is_chat=False)


def inputs_of(generation):
    return values(generation.requests[0].inputs)


def refusal(call, *arguments, **more) -> tuple[int, str | None, str]:
    with pytest.raises(OpenAIError) as caught:
        call(*arguments, **more)
    return caught.value.status, caught.value.param, caught.value.message


# Texts


def test_model_of_chats_gets_a_prompt_as_the_only_message():
    read = read_completion(spec("chat,completions", MESSAGES), prompt=["hi", 'say "yes"'])

    texts = [values(request.inputs)["messages"] for request in read.requests]
    assert [json.loads(text) for text in texts] == [
        [{"role": "user", "content": "hi"}],
        [{"role": "user", "content": 'say "yes"'}],
    ]


def test_model_with_messages_gets_them_as_the_client_wrote_them():
    body = b'{"messages": [ {"role":"user","content":[{"type":"image_url","image_url":{}}]} ]}'

    read = read_chat(spec("chat", MESSAGES), DocumentMembers(body))

    assert inputs_of(read) == {
        "messages": '[ {"role":"user","content":[{"type":"image_url","image_url":{}}]} ]'
    }


def test_model_with_a_prompt_gets_it_by_the_template():
    messages = [
        {"role": "system", "content": "Be short."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "?"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
        {"role": "function", "content": "3"},
    ]

    read = read_chat(spec("chat", PROMPT), members(messages=messages))

    assert inputs_of(read)["prompt"] == (
        'System: Be short.\nUser: One?\nAssistant: [{"id": "1"}]\nTool: 2\nTool: 3\nAssistant:'
    )


def test_template_of_the_model_is_used_and_ends_its_answers():
    read = read_chat(spec("chat", PROMPT, template="chatml"), stop=["x"])

    assert inputs_of(read)["prompt"].startswith("<|im_start|>user\nhi<|im_end|>")
    assert read.stops == ("x", "<|im_end|>")


def test_model_with_both_gets_what_it_needs():
    both = {"messages": "STRING [1] ?", "prompt": "STRING [1] ?"}
    required = {"messages": "STRING [1] ?", "prompt": "STRING [1]"}

    assert inputs_of(read_chat(spec("chat", both))).keys() == {"messages"}
    assert inputs_of(read_chat(spec("chat", required))).keys() == {"messages", "prompt"}
    assert inputs_of(read_completion(spec("completions", both))) == {"prompt": "hi"}


def test_each_prompt_and_each_choice_is_a_request():
    model = spec("completions", {**PROMPT, "seed": "INT64 [1] ?"})

    read = read_completion(model, prompt=["a", "b"], n=2, seed=7, echo=True)

    assert [values(each.inputs) for each in read.requests] == [
        {"prompt": "a", "seed": 7},
        {"prompt": "a", "seed": 8},
        {"prompt": "b", "seed": 7},
        {"prompt": "b", "seed": 8},
    ]
    assert read.prefixes == ["a", "a", "b", "b"]
    assert read.choices_per_prompt == 2


def test_batching_model_gets_one_row():
    model = spec("completions", {**PROMPT, "stop": "STRING [-1] ?"}, max_batch_size=4)

    request = read_completion(model, stop=["a", "b"]).requests[0]

    assert request.inputs["prompt"].shape == (1, 1)
    assert request.inputs["stop"].shape == (1, 2)


@pytest.mark.parametrize(
    "prompt, expected",
    [
        ([1, 2], "got tokens"),
        ([[1, 2], [3]], "got tokens"),
        ([], "got an empty list"),
        (5, "expected a text or a list of texts as 'prompt': Expected `str | array`, got `int`"),
        (None, "got none"),
        (["a"] * (MAX_CHOICES + 1), "expected at most 128 choices, got 129"),
    ],
)
def test_prompts_that_are_no_texts_are_refused(prompt, expected):
    status, param, message = refusal(read_completion, spec("completions", PROMPT), prompt=prompt)

    assert status == 400
    assert param in ("prompt", "n")
    assert expected in message


@pytest.mark.parametrize(
    "messages, param",
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ([{"content": "hi"}], "messages[0]"),
        ([{"role": "king", "content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content"),
        ([{"role": "user"}] * (MAX_PARTS + 1), "messages"),
        ([{"role": "user", "content": [{"type": "text"}] * (MAX_PARTS + 1)}],
         "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}] * (MAX_PARTS // 2)}] * 3,
         "messages[2].content"),
        ([1] * MAX_MEMBER_BYTES, "messages"),
        ([{"role": ""}] * MAX_MEMBER_BYTES, "messages"),
        ([{"role": "user", "content": [1] * MAX_MEMBER_BYTES}], "messages[0].content"),
    ],
)  # fmt: skip
def test_malformed_messages_are_refused(messages, param):
    status, found, message = refusal(read_chat, spec("chat", PROMPT), members(messages=messages))

    assert (status, found) == (400, param)
    assert message.startswith("expected ")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"a"', b"{} {}", b'{"a": nan}', b'{"a": "\xff"}', b"[" * 10**6],
)
def test_body_that_is_no_object_is_refused(body):
    def read():
        found = DocumentMembers(body)
        found.value("a")

    assert refusal(read)[0] == 400


def test_long_texts_are_read():
    text = "x" * (2 * MAX_MEMBER_BYTES)

    chat_prompt = inputs_of(read_chat(spec("chat", PROMPT), content=text))["prompt"]
    assert chat_prompt == f"User: {text}\nAssistant:"
    assert inputs_of(read_completion(spec("completions", PROMPT), prompt=text)) == {"prompt": text}


@pytest.mark.parametrize("routes", ["chat", "completions"])
def test_choices_of_a_long_text_are_limited(routes):
    text = "x" * (MAX_INPUT_BYTES // 64)
    if routes == "chat":
        call, asked = read_chat, {"content": text}
    else:
        call, asked = read_completion, {"prompt": text, "echo": True}

    assert len(call(spec(routes, PROMPT), **asked, n=60).requests) == 60
    assert refusal(call, spec(routes, PROMPT), **asked, n=65)[:2] == (400, "n")


def test_sampling_parameters_that_cannot_be_written_are_refused():
    model = spec("completions", VLLM_INPUTS, VLLM_OUTPUTS)

    status, _, message = refusal(read_completion, model, top_k=2**70)

    assert (status, message.startswith("expected integers of up to 64 bits")) == (400, True)


# DocumentMembers


def test_model_gets_what_it_declares_with_the_types_that_it_declares():
    model = spec(
        "chat",
        {
            **MESSAGES,
            "max_tokens": "INT32 [1] ?",
            "temperature": "FP32 [1] ?",
            "top_p": "FP64 [1] ?",
            "stop": "STRING [-1] ?",
            "tools": "STRING [1] ?",
            "user": "STRING [1] ?",
            "top_k": "INT64 [1] ?",
            "stream": "BOOL [1] ?",
            "response_format": "STRING [1] ?",
        },
    )
    asked = {
        "max_completion_tokens": 5,
        "temperature": 1,
        "top_p": 0.5,
        "stop": "x",
        "tools": TOOLS,
        "user": "me",
        "top_k": 3,
        "stream": True,
        "response_format": {"type": "json_object"},
    }

    read = read_chat(model, **asked)

    found = inputs_of(read)
    assert json.loads(found.pop("tools")) == TOOLS
    assert json.loads(found.pop("response_format")) == {"type": "json_object"}
    del found["messages"]
    assert found == {
        "max_tokens": 5,
        "temperature": 1.0,
        "top_p": 0.5,
        "stop": "x",
        "user": "me",
        "top_k": 3,
        "stream": True,
    }
    assert read.stops == ()
    assert (read.max_tokens, read.ends_at_limit) == (5, False)
    assert read.requests[0].fields.parameters == {}


def test_list_for_an_input_of_one_string_is_json():
    read = read_chat(spec("chat", {**MESSAGES, "stop": "STRING [1] ?"}), stop=["a", "b"])

    assert inputs_of(read)["stop"] == '["a","b"]'


def test_server_does_what_a_model_does_not_declare():
    read = read_chat(spec("chat", MESSAGES), max_tokens=9, stop=["a", "", "b"])

    assert (read.max_tokens, read.ends_at_limit, read.stops) == (9, True, ("a", "b"))


def test_plain_values_that_a_model_does_not_declare_are_parameters():
    asked = {"temperature": 0.5, "user": "me", "top_k": 4, "metadata": {"a": "b"}, "seed": 3}

    read = read_chat(spec("chat", MESSAGES), **asked, parallel_tool_calls=True, top_p=None)

    assert inputs_of(read).keys() == {"messages"}
    assert read.requests[0].fields.parameters == {
        "temperature": 0.5,
        "user": "me",
        "top_k": 4,
        "seed": 3,
        "parallel_tool_calls": True,
    }


@pytest.mark.parametrize(
    "name, value",
    [
        ("tools", TOOLS),
        ("functions", [{"name": "f"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"5": 1}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("web_search_options", {}),
        ("logprobs", True),
        ("anything", {"a": 1}),
    ],
)
def test_member_without_which_the_answer_is_another_one_is_refused(name, value):
    status, param, message = refusal(read_chat, spec("chat", MESSAGES), **{name: value})

    assert (status, param) == (400, name)
    assert message.startswith(f"the model 'm' does not support '{name}': it has no such ")


@pytest.mark.parametrize(
    "asked",
    [
        {"tools": []},
        {"tools": TOOLS, "tool_choice": "none"},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"logit_bias": {}},
        {"modalities": ["text"]},
        {"logprobs": False},
    ],
)
def test_value_that_changes_nothing_is_accepted(asked):
    assert inputs_of(read_chat(spec("chat", MESSAGES), **asked)).keys() == {"messages"}


@pytest.mark.parametrize("asked", [{"best_of": 2}, {"suffix": "x"}, {"best_of": 1, "n": 2}])
def test_completion_that_needs_more_is_refused(asked):
    assert refusal(read_completion, spec("completions", PROMPT), **asked)[0] == 400


def test_limit_for_a_model_that_answers_all_at_once_is_refused():
    model = spec("completions", PROMPT, decoupled=False)

    status, param, message = refusal(read_completion, model, max_tokens=5)

    assert (status, param) == (400, "max_tokens")
    assert message == (
        "the model 'm' does not support 'max_tokens': it has no input 'max_tokens', and it answers "
        "all at once"
    )


@pytest.mark.parametrize(
    "asked, param",
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": "two"}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options"),
        ({"stop": 5}, "stop"),
        ({"stop": list("abcde")}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 2**40}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"top_k": [1, 2]}, "top_k"),
        ({"triton_x": 1}, "triton_x"),
        ({"top_k": 2**70}, "top_k"),
        ({"top_k": [[2**70]]}, "top_k"),
        ({"note": 2**70}, "note"),
        ({"note": json.loads("[" * 300 + "]" * 300)}, "note"),
        ({"input": ["x" * MAX_MEMBER_BYTES]}, "input"),
        ({"big": ["x" * MAX_MEMBER_BYTES]}, None),
        ({str(number): 1 for number in range(MAX_MEMBERS)}, None),
    ],
)
def test_wrong_values_are_refused_by_name(asked, param):
    types = {"temperature": "FP32 [1] ?", "top_k": "INT32 [1] ?", "note": "STRING [1] ?"}
    model = spec("chat", {**MESSAGES, **types})

    status, found, _ = refusal(read_chat, model, **asked)

    assert (status, found) == (400, param)


def test_usage_in_a_stream_is_an_option():
    asked = {"stream": True, "stream_options": {"include_usage": True, "other": 1}}

    assert read_chat(spec("chat", MESSAGES), **asked).includes_usage
    assert not read_chat(spec("chat", MESSAGES), stream=True).includes_usage


# vLLM's backend


def test_vllm_gets_sampling_parameters_and_flags():
    model = spec("chat", VLLM_INPUTS, VLLM_OUTPUTS)

    read = read_chat(
        model,
        max_tokens=7,
        temperature=0,
        stop=["x"],
        top_k=5,
        user="me",
        logprobs=True,
        seed=1,
        n=2,
    )

    found = inputs_of(read)
    assert json.loads(found.pop("sampling_parameters")) == {
        "max_tokens": 7,
        "stop": ["x"],
        "temperature": 0,
        "top_k": 5,
        "logprobs": 1,
        "seed": 1,
    }
    assert found == {
        "text_input": "User: hi\nAssistant:",
        "stream": False,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_logprobs": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }
    second = value_of(read.requests[1].inputs["sampling_parameters"])
    assert json.loads(second)["seed"] == 2
    assert (read.stops, read.max_tokens, read.ends_at_limit) == ((), 7, False)
    assert read.requests[0].fields.parameters == {"user": "me"}


def test_vllm_streams_without_the_flag_that_it_refuses():
    found = inputs_of(read_chat(spec("chat", VLLM_INPUTS, VLLM_OUTPUTS), stream=True))

    assert found["stream"] is True
    assert "exclude_input_in_output" not in found
    assert "return_logprobs" not in found
    assert "sampling_parameters" not in found


def test_completion_asks_for_a_number_of_logprobs():
    outputs = {**VLLM_OUTPUTS, "top": "FP32 [1]"}
    declared = {**PROMPT, "logprobs": "INT32 [1] ?"}

    vllm = inputs_of(read_completion(spec("completions", VLLM_INPUTS, outputs), logprobs=3))
    own = inputs_of(read_completion(spec("completions", declared, outputs), logprobs=3))

    assert json.loads(vllm["sampling_parameters"]) == {"logprobs": 3}
    assert own["logprobs"] == 3


def test_model_serves_only_the_routes_that_it_has_opted_in_to():
    check_served(spec("chat", PROMPT), "m", "chat")

    assert refusal(check_served, spec("chat", PROMPT), "m", "embeddings") == (
        404,
        "model",
        "The model 'm' does not serve embeddings, only chat.",
    )


# Values out of range, and forms that are none

ALL = {
    **MESSAGES,
    "max_tokens": "INT32 [1] ?",
    "temperature": "FP32 [1] ?",
    "min_tokens": "INT32 [1] ?",
    "tools": "STRING [1] ?",
    "tool_choice": "STRING [1] ?",
    "response_format": "STRING [1] ?",
}


def json_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **more}}


def tool(parameters=None, name="clock"):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize("model", [spec("chat", ALL), spec("chat", MESSAGES)], ids=["all", "none"])
@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("temperature", "0.5"),
        ("temperature", True),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("frequency_penalty", 3),
        ("frequency_penalty", -3),
        ("presence_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("min_tokens", -1),
        ("min_tokens", 1.5),
        ("max_tokens", -1),
        ("max_completion_tokens", 0),
        ("ignore_eos", 123),
        ("n", 0),
        ("n", 129),
        ("seed", 2**63),
        ("seed", "x"),
        ("top_logprobs", 21),
        ("top_logprobs", 2),
        ("logit_bias", {"5": 101}),
        ("logit_bias", [5]),
        ("logit_bias", {"hello": 5}),
        ("parallel_tool_calls", "yes"),
        ("stream_options", {"include_usage": True}),
        ("tools", {}),
        ("tools", ["clock"]),
        ("tools", [{}]),
        ("tools", [{"type": "function"}]),
        ("tools", [{"type": "function", "function": {}}]),
        ("tools", [{"type": "function", "function": {"name": 5}}]),
        ("tools", [{"type": "function", "function": {"name": "two words"}}]),
        ("tools", [{"type": "function", "function": {"name": "x" * 65}}]),
        ("tools", [{"type": "function", "function": {"name": "x", "parameters": []}}]),
        ("tools", [{"type": "oracle", "function": {"name": "x"}}]),
        ("tools", TOOLS * 129),
        ("tool_choice", "clock"),
        ("tool_choice", {"type": "function"}),
        ("tool_choice", {"type": "function", "function": {}}),
        ("tool_choice", {"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": []}}),
        ("response_format", "json"),
        ("response_format", {}),
        ("response_format", {"type": "yaml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a"}}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {}}}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}}),
    ],
)  # fmt: skip
def test_values_that_nobody_can_honour_are_refused(model, name, value):
    status, param, message = refusal(read_chat, model, **{name: value})

    assert (status, param) == (400, name)
    assert message.startswith("expected ")


@pytest.mark.parametrize("name, value", [("logprobs", 6), ("logprobs", -1), ("temperature", 3)])
def test_values_of_completions_are_checked(name, value):
    assert refusal(read_completion, spec("completions", PROMPT), **{name: value})[:2] == (400, name)


def test_least_number_of_tokens_is_at_most_the_limit():
    model = spec("chat", ALL)

    assert inputs_of(read_chat(model, max_tokens=5, min_tokens=5))["min_tokens"] == 5
    assert refusal(read_chat, model, max_tokens=5, min_tokens=6)[:2] == (400, "min_tokens")


def test_least_number_of_tokens_is_checked_for_models_that_do_not_declare_it():
    model = spec("chat", {**MESSAGES, "max_tokens": "INT32 [1] ?"})

    assert refusal(read_chat, model, max_tokens=5, min_tokens=6)[:2] == (400, "min_tokens")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "tool", "tool_call_id": "a"},
        {"role": "user", "content": 5},
        {"role": "user", "content": {"type": "text", "text": "a"}},
        {"role": "user", "content": ["a"]},
        {"role": "user", "content": [{"text": "a"}]},
    ],
)
def test_messages_without_a_content_to_read_are_refused_for_models_that_take_messages(message):
    messages = [{"role": "user", "content": "a"}, message]

    status, param, text = refusal(read_chat, spec("chat", MESSAGES), members(messages=messages))

    assert (status, param) == (400, "messages[1].content")
    assert text.startswith("expected a text or a list of parts")


def test_messages_that_call_something_need_no_content():
    messages = [{"role": "assistant", "tool_calls": []}, {"role": "assistant", "content": None}]

    read_chat(spec("chat", MESSAGES), members(messages=messages))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"type": 5},
        {"type": ["object", "text"]},
        {"properties": ["a"]},
        {"properties": {"a": 5}},
        {"properties": {"a": {"type": "int"}}},
        {"required": "a"},
        {"required": [5]},
        {"enum": []},
        {"enum": 5},
        {"items": 5},
        {"anyOf": []},
        {"anyOf": {"type": "object"}},
        {"$defs": {"a": {"items": [{"not": {"type": "x"}}]}}},
    ],
)
def test_malformed_schemas_are_refused(schema):
    model = spec("chat", ALL)

    found = refusal(read_chat, model, response_format=json_format(schema))
    assert (found[0], found[1]) == (400, "response_format")
    assert "in the schema, got" in found[2]
    found = refusal(read_chat, model, tools=[tool(schema)])
    assert (found[0], found[1]) == (400, "tools")
    assert "in the parameters of tool 0, got" in found[2]


def test_schemas_as_clients_send_them_are_accepted():
    schema = {
        "$defs": {"City": {"enum": ["Rome", None]}},
        "additionalProperties": False,
        "properties": {
            "city": {"anyOf": [{"$ref": "#/$defs/City"}, {"type": "null"}], "default": None},
            "type": {"type": "string", "title": "Type"},
            "tags": {"type": "array", "items": {"type": ["string", "null"]}, "prefixItems": [True]},
        },
        "required": ["city", "tags"],
        "type": "object",
    }
    asked = {"tools": [tool(schema), tool()], "response_format": json_format(schema, strict=True)}

    found = inputs_of(read_chat(spec("chat", ALL), **asked))

    assert {name: json.loads(found[name]) for name in asked} == asked


NAMED = {"type": "function", "function": {"name": "clock"}}


def allowed(*tools):
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": list(tools)}}


@pytest.mark.parametrize("choice", ["auto", "none", "required", NAMED, allowed(NAMED)])
def test_choice_that_fits_a_tool_is_passed_on(choice):
    found = inputs_of(read_chat(spec("chat", ALL), tools=[tool()], tool_choice=choice))

    given = found.get("tool_choice", "none")
    assert (json.loads(given) if isinstance(choice, dict) else given) == choice


@pytest.mark.parametrize(
    "choice, tools",
    [
        (NAMED, [tool(name="other")]),
        (NAMED, []),
        (NAMED, None),
        ("required", []),
        ("required", None),
        (allowed(NAMED), [tool(name="other")]),
        ({"type": "custom", "custom": {"name": "lamp"}}, [tool()]),
    ],
)
def test_choice_that_fits_no_tool_is_refused(choice, tools):
    found = refusal(read_chat, spec("chat", ALL), tools=tools, tool_choice=choice)

    assert found[:2] == (400, "tool_choice")
