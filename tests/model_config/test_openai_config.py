# SPDX-License-Identifier: Apache-2.0
"""How a bound model opts in to OpenAI's routes, as parameters of its configuration and back."""

from __future__ import annotations

import pytest

from pytriton.base.openai_routes import (
    CHAT_TEMPLATES,
    as_openai,
    openai_parameters,
    read_openai_parameters,
)
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import ChatTemplate, ModelConfig, OpenAI
from pytriton.model_config.generator import ModelConfigGenerator
from pytriton.model_config.parser import ModelConfigParser
from pytriton.model_config.triton_model_config import TritonModelConfig

TEMPLATE = ChatTemplate(user="Q: {content}\n", answer="A:", stop=["\nQ:"])


@pytest.mark.parametrize(
    "written", ["chat,completions", " completions , chat", ["chat", "completions"]]
)
def test_routes_may_be_written_by_name(written):
    assert ModelConfig(openai=written).openai == OpenAI(chat=True, completions=True)


def test_record_stays_as_it_is():
    record = OpenAI(embeddings=True)

    assert as_openai(record) is record
    assert as_openai(None) is None


@pytest.mark.parametrize(
    "written, expected",
    [
        ("talk", "Expected chat, completions, embeddings as OpenAI's routes, got 'talk'."),
        ("", "got ''."),
        ([], "got none."),
        (True, "got True."),
        (["chat", 1], "got ['chat', 1]."),
    ],
)
def test_other_values_are_refused(written, expected):
    with pytest.raises(PyTritonBadParameterError) as caught:
        ModelConfig(openai=written)

    assert str(caught.value).endswith(expected)


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: OpenAI(chat="yes"), "Expected an object of bool as `chat` of OpenAI's routes"),
        (lambda: OpenAI(chat=True, chat_template="jinja"), "Expected a ChatTemplate or one of"),
        (lambda: ChatTemplate(user="hello"), "Expected a text with {content} as `user`"),
        (lambda: ChatTemplate(answer=1), "Expected an object of str as `answer`"),
        (lambda: ChatTemplate(stop=["a", ""]), "Expected up to 4 texts as `stop`"),
        (lambda: ChatTemplate(stop="abcde"), None),
    ],
)
def test_wrong_record_is_refused_where_it_is_written(make, expected):
    if expected is None:
        assert make().stop == ("abcde",)
        return
    with pytest.raises(PyTritonBadParameterError) as caught:
        make()

    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("template", ["plain", "chatml", TEMPLATE], ids=["plain", "chatml", "own"])
def test_record_is_read_back_from_a_file(tmp_path, template):
    record = OpenAI(chat=True, embeddings=True, chat_template=template)
    config = TritonModelConfig(model_name="m", openai=record, backend_parameters={"a": "b"})
    ModelConfigGenerator(config).to_file(tmp_path / "config.pbtxt")

    read = ModelConfigParser.from_file(config_path=tmp_path / "config.pbtxt")

    assert read.openai == record
    assert read.backend_parameters == {"a": "b"}


def test_parameter_of_another_meaning_is_left_alone():
    message = {"name": "m", "parameters": {"openai": {"string_value": "gpt"}}}

    read = ModelConfigParser.from_dict(message)

    assert read.openai is None
    assert read.backend_parameters == {"openai": "gpt"}


@pytest.mark.parametrize("text", ["{", "{}{", '{"bot": "{content}"}', '{"user": "hello"}'])
def test_wrong_template_in_a_configuration_is_refused(text):
    with pytest.raises(PyTritonBadParameterError, match="Expected a"):
        read_openai_parameters({"openai": "chat", "openai_chat_template": text})


def test_plain_template_is_not_written():
    assert openai_parameters(OpenAI(chat=True)) == {"openai": "chat"}


def test_template_makes_a_prompt_of_all_roles():
    messages = [
        ("developer", "Be kind."),
        ("user", "{content}?"),
        ("assistant", "x"),
        ("tool", "3"),
    ]

    assert ChatTemplate().prompt(messages) == (
        "System: Be kind.\nUser: {content}?\nAssistant: x\nTool: 3\nAssistant:"
    )
    assert CHAT_TEMPLATES["chatml"].prompt([("user", "hi")]) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
