# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a model OpenAI's routes use, and which models they cannot serve."""

from __future__ import annotations

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.sent_specs import decode_spec, encode_spec
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config


def spec(routes, inputs, outputs, more=""):
    def tensors(kind, names):
        return " ".join(
            f'{kind} {{ name: "{name.rstrip("?")}" data_type: TYPE_{dtype} dims: [ 1 ] '
            f"{'optional: true' if name.endswith('?') else ''} }}"
            for name, dtype in names.items()
        )

    text = (
        f'name: "m" backend: "python" {tensors("input", inputs)} {tensors("output", outputs)} '
        f'parameters {{ key: "openai" value {{ string_value: "{routes}" }} }} {more}'
    )
    config = config_from_text(text, "config.pbtxt")
    return spec_from_config(normalise_config(config), 1)


@pytest.mark.parametrize(
    "inputs, outputs, expected",
    [
        ({"messages": "STRING"}, {"text": "STRING"}, ("messages", "", "text")),
        ({"messages?": "STRING", "prompt?": "STRING"}, {"output": "STRING"},
         ("messages", "prompt", "output")),
        ({"text_input": "STRING", "stop?": "STRING"},
         {"text_output": "STRING", "finish_reason": "STRING"}, ("", "text_input", "text_output")),
        ({"question": "STRING", "max_tokens?": "INT32"}, {"answer": "STRING", "n": "INT32"},
         ("", "question", "answer")),
        ({"messages": "STRING", "question": "STRING"}, {"text": "STRING"},
         ("messages", "question", "text")),
    ],
)  # fmt: skip
def test_tensors_are_found_by_name_or_because_there_is_only_one(inputs, outputs, expected):
    found = spec("chat", inputs, outputs).openai

    assert (found.messages, found.prompt, found.text) == expected


@pytest.mark.parametrize("name", ["embedding", "embeddings", "vector"])
def test_embedding_is_an_output_of_floats(name):
    found = spec("embeddings", {"text": "STRING"}, {name: "FP32", "count": "INT32"}).openai

    assert (found.prompt, found.embedding) == ("text", name)
    assert (found.chat, found.embeddings) == (False, True)


def test_model_without_the_parameter_has_not_opted_in():
    config = config_from_text('name: "m" backend: "python"', "config.pbtxt")

    assert spec_from_config(normalise_config(config), 1).openai is None


@pytest.mark.parametrize(
    "routes, inputs, outputs, expected",
    [
        ("chat", {"messages": "INT32"}, {"text": "STRING"}, "chat expects an input messages or"),
        ("chat", {"a": "STRING", "b": "STRING"}, {"text": "STRING"}, "chat expects an input"),
        ("completions", {"a": "STRING", "b": "STRING"}, {"text": "STRING"},
         "completions expect an input prompt or text_input or text or input or messages, or one"),
        ("embeddings", {"messages": "STRING"}, {"vector": "FP32"},
         "embeddings expect an input prompt or text_input or text or input, or one required"),
        ("chat", {"prompt": "STRING"}, {"a": "STRING", "b": "STRING"},
         "chat and completions expect an output text or text_output or output, or one output"),
        ("embeddings", {"text": "STRING"}, {"text": "STRING"}, "embeddings expect an output"),
    ],
)  # fmt: skip
def test_model_whose_tensors_do_not_fit_is_refused(routes, inputs, outputs, expected):
    with pytest.raises(InvalidArgumentError) as caught:
        spec(routes, inputs, outputs)

    assert caught.value.message.startswith(f"model 'm' cannot serve OpenAI's routes: {expected}"), (
        caught.value.message
    )


def test_unknown_route_is_refused():
    with pytest.raises(InvalidArgumentError) as caught:
        spec("talk", {"prompt": "STRING"}, {"text": "STRING"})

    assert caught.value.message == (
        "parameter 'openai' of model 'm': Expected chat, completions, embeddings as OpenAI's "
        "routes, got 'talk'."
    )


def test_front_ends_in_other_processes_get_all_of_it():
    template = 'parameters { key: "openai_chat_template" value { string_value: "chatml" } }'
    found = spec("chat,completions", {"prompt": "STRING"}, {"text": "STRING"}, template)

    assert found.openai.template.stop == ("<|im_end|>",)
    assert decode_spec(encode_spec(found)) == found
