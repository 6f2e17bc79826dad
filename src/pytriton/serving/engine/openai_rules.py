# SPDX-License-Identifier: Apache-2.0
"""What a model's configuration says about OpenAI's routes, and whether its tensors fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.model_spec import OpenAISpec, TensorSpec
from pytriton.base.openai_routes import (
    ROUTES_PARAMETER,
    TEMPLATE_PARAMETER,
    OpenAI,
    read_openai_parameters,
)
from pytriton.exceptions import PyTritonBadParameterError

MESSAGES = "messages"
PROMPTS = ("prompt", "text_input", "text", "input")
TEXTS = ("text", "text_output", "output")
EMBEDDINGS = ("embedding", "embeddings")

_TEXT_TYPES = frozenset({dtypes.BYTES})
_FLOAT_TYPES = frozenset({dtypes.FP16, dtypes.BF16, dtypes.FP32, dtypes.FP64})


def openai_spec(
    config: Any, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]
) -> OpenAISpec | None:
    """Returns which routes serve a model, and by which tensors; None if it has not opted in.

    Args:
        config: The ModelConfig message.
        inputs: The model's inputs.
        outputs: The model's outputs.

    Raises:
        InvalidArgumentError: A parameter is wrong, or a tensor is missing that a route needs.
    """
    if ROUTES_PARAMETER not in config.parameters:
        return None
    parameters = {
        key: config.parameters[key].string_value
        for key in (ROUTES_PARAMETER, TEMPLATE_PARAMETER)
        if key in config.parameters
    }
    try:
        openai = read_openai_parameters(parameters)
    except PyTritonBadParameterError as error:
        raise InvalidArgumentError(
            f"parameter '{ROUTES_PARAMETER}' of model '{config.name}': {error}"
        ) from error
    assert openai is not None
    required = {name: tensor for name, tensor in inputs.items() if not tensor.optional}
    spec = OpenAISpec(
        chat=openai.chat,
        completions=openai.completions,
        embeddings=openai.embeddings,
        template=openai.template,
        messages=_named(inputs, (MESSAGES,), _TEXT_TYPES),
        prompt=_named(inputs, PROMPTS, _TEXT_TYPES) or _only(required, _TEXT_TYPES, MESSAGES),
        text=_named(outputs, TEXTS, _TEXT_TYPES) or _only(outputs, _TEXT_TYPES),
        embedding=_named(outputs, EMBEDDINGS, _FLOAT_TYPES) or _only(outputs, _FLOAT_TYPES),
    )
    problem = _problem(openai, spec)
    if problem:
        raise InvalidArgumentError(f"model '{config.name}' cannot serve OpenAI's routes: {problem}")
    return spec


def _named(
    tensors: Mapping[str, TensorSpec],
    names: Sequence[str],
    types: frozenset[dtypes.DataType],
) -> str:
    """Returns the first of these names that a tensor of a type has; empty if there is none."""
    return next((each for each in names if each in tensors and tensors[each].dtype in types), "")


def _only(
    tensors: Mapping[str, TensorSpec], types: frozenset[dtypes.DataType], other: str = ""
) -> str:
    """Returns the name of the only tensor of a type; empty if there are none or several."""
    names = [name for name, each in tensors.items() if each.dtype in types and name != other]
    return names[0] if len(names) == 1 else ""


def _problem(openai: OpenAI, spec: OpenAISpec) -> str:
    if openai.chat and not (spec.messages or spec.prompt):
        return f"chat expects an input {MESSAGES} or {' or '.join(PROMPTS)} of strings, got none"
    if (openai.completions or openai.embeddings) and not spec.prompt:
        return (
            "completions and embeddings expect an input "
            f"{' or '.join(PROMPTS)}, or one required input, of strings, got none"
        )
    if (openai.chat or openai.completions) and not spec.text:
        return (
            f"chat and completions expect an output {' or '.join(TEXTS)}, or one output, of "
            "strings, got none"
        )
    if openai.embeddings and not spec.embedding:
        return (
            f"embeddings expect an output {' or '.join(EMBEDDINGS)}, or one output, of floats, "
            "got none"
        )
    return ""
