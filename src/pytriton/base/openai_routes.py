# SPDX-License-Identifier: Apache-2.0
"""Which of OpenAI's routes serve a model, and the parameters of its configuration that say so.

It is not in `model_config`, whose other settings a server does not need: they take 14 ms to import.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.utils.checks import check_type

ROUTES = ("chat", "completions", "embeddings")
ROUTES_PARAMETER = "openai"
TEMPLATE_PARAMETER = "openai_chat_template"

_PLACE = "{content}"
_MAX_STOPS = 4

# Outputs in which a model counts tokens: ours, and those of Triton's backends.
PROMPT_TOKENS = ("prompt_tokens", "num_input_tokens")
COMPLETION_TOKENS = ("completion_tokens", "num_output_tokens")
FINISH_REASON = "finish_reason"


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """How the messages of a chat become one prompt, for models that take no `messages`.

    In the text of each role, `{content}` is replaced by what the message says.

    Args:
        system: a message of the roles `system` and `developer`.
        user: a message of the user.
        assistant: an earlier answer of the model.
        tool: the result of a tool.
        answer: the end of the prompt, after which the model continues.
        stop: texts at which an answer ends, beside those that a request asks for.
    """

    system: str = "System: {content}\n"
    user: str = "User: {content}\n"
    assistant: str = "Assistant: {content}\n"
    tool: str = "Tool: {content}\n"
    answer: str = "Assistant:"
    stop: Sequence[str] = ()

    def __post_init__(self) -> None:
        for role in ("system", "user", "assistant", "tool", "answer"):
            text = getattr(self, role)
            check_type(text, f"`{role}` of a chat template", str)
            if role != "answer" and _PLACE not in text:
                raise PyTritonBadParameterError(
                    f"Expected a text with {_PLACE} as `{role}` of a chat template, got {text!r}."
                )
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if len(stops) > _MAX_STOPS or not all(isinstance(each, str) and each for each in stops):
            raise PyTritonBadParameterError(
                f"Expected up to {_MAX_STOPS} texts as `stop` of a chat template, "
                f"got {self.stop!r}."
            )
        object.__setattr__(self, "stop", stops)

    def prompt(self, messages: Sequence[tuple[str, str]]) -> str:
        """Make a prompt.

        Args:
            messages: the role and the content of each message.

        Returns:
            The texts of all messages, and the beginning of the answer.
        """
        parts = []
        for role, content in messages:
            text: str = getattr(self, "system" if role == "developer" else role)
            parts.append(text.replace(_PLACE, content))
        return "".join((*parts, self.answer))


CHAT_TEMPLATES: dict[str, ChatTemplate] = {
    "plain": ChatTemplate(),
    "chatml": ChatTemplate(
        **{
            role: f"<|im_start|>{role}\n{_PLACE}<|im_end|>\n"
            for role in ("system", "user", "assistant", "tool")
        },
        answer="<|im_start|>assistant\n",
        stop=("<|im_end|>",),
    ),
}


@dataclasses.dataclass(frozen=True)
class OpenAI:
    """Which of OpenAI's routes serve a model; at least one of the three.

    Args:
        chat: whether `/v1/chat/completions` serves it.
        completions: whether `/v1/completions` serves it.
        embeddings: whether `/v1/embeddings` serves it.
        chat_template: how messages become a prompt, if the model has no input `messages`: a
            template, or the name of one, `plain` or `chatml`.
    """

    chat: bool = False
    completions: bool = False
    embeddings: bool = False
    chat_template: ChatTemplate | str = "plain"

    def __post_init__(self) -> None:
        for route in ROUTES:
            check_type(getattr(self, route), f"`{route}` of OpenAI's routes", bool)
        if not (self.chat or self.completions or self.embeddings):
            raise PyTritonBadParameterError(
                f"Expected at least one of {', '.join(ROUTES)} for OpenAI's routes, got none."
            )
        check_type(self.chat_template, "`chat_template` of OpenAI's routes", ChatTemplate, str)
        if isinstance(self.chat_template, str) and self.chat_template not in CHAT_TEMPLATES:
            raise PyTritonBadParameterError(
                f"Expected a ChatTemplate or one of {', '.join(CHAT_TEMPLATES)} as "
                f"`chat_template` of OpenAI's routes, got {self.chat_template!r}."
            )

    @property
    def template(self) -> ChatTemplate:
        """The template that is meant."""
        chosen = self.chat_template
        return CHAT_TEMPLATES[chosen] if isinstance(chosen, str) else chosen


def as_openai(value: object) -> OpenAI | None:
    """Read the setting as users write it.

    Args:
        value: an `OpenAI`, or the names of routes: "chat", "chat,completions", ["embeddings"].

    Returns:
        The record; None for None.

    Raises:
        PyTritonBadParameterError: It is something else, or names an unknown route.
    """
    if value is None or isinstance(value, OpenAI):
        return value
    names: Any = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise PyTritonBadParameterError(
            f"Expected an object of OpenAI or names of {', '.join(ROUTES)} as openai, "
            f"got {value!r}."
        )
    chosen = [name.strip() for name in names]
    for name in chosen:
        if name not in ROUTES:
            raise PyTritonBadParameterError(
                f"Expected {', '.join(ROUTES)} as OpenAI's routes, got {name!r}."
            )
    return OpenAI(**dict.fromkeys(chosen, True))  # type: ignore[arg-type]  # all are flags


def openai_parameters(openai: OpenAI) -> dict[str, str]:
    """Returns the parameters of a model's configuration for its routes."""
    names = [route for route in ROUTES if getattr(openai, route)]
    parameters = {ROUTES_PARAMETER: ",".join(names)}
    template = openai.chat_template
    if isinstance(template, ChatTemplate):
        parameters[TEMPLATE_PARAMETER] = json.dumps(dataclasses.asdict(template))
    elif template != "plain":
        parameters[TEMPLATE_PARAMETER] = template
    return parameters


def read_openai_parameters(parameters: Mapping[str, str]) -> OpenAI | None:
    """Read the routes from the parameters of a model's configuration.

    Args:
        parameters: all parameters, by key.

    Returns:
        The record; None if the model has not opted in.

    Raises:
        PyTritonBadParameterError: A value is wrong.
    """
    openai = as_openai(parameters.get(ROUTES_PARAMETER))
    template = parameters.get(TEMPLATE_PARAMETER, "").strip()
    if openai is None or not template:
        return openai
    if not template.startswith("{"):
        return dataclasses.replace(openai, chat_template=template)
    try:
        return dataclasses.replace(openai, chat_template=ChatTemplate(**json.loads(template)))
    except (TypeError, ValueError) as error:
        raise PyTritonBadParameterError(
            "Expected a JSON object with texts for system, user, assistant, tool, answer and stop "
            f"as {TEMPLATE_PARAMETER}, got {template!r}."
        ) from error
