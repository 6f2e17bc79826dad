# SPDX-License-Identifier: Apache-2.0
"""Decides what becomes of each member of a request: an input, a sampling parameter, a parameter.

A model gets what it declares, as tensors. A member that it does not declare is left out if an
answer without it is still an answer, and refused if not.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import orjson

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.messages import InferTensor, ParameterValue
from pytriton.base.model_spec import ModelSpec, ModelTensor
from pytriton.protocol.json_text import parameter_value, refuse_reserved
from pytriton.protocol.openai.errors import unsupported, wrong
from pytriton.protocol.openai.members import DocumentMembers

MAX_INPUT_BYTES = 32 << 20  # of copies that one request of a client gives the model

_INTEGERS = frozenset(
    {
        dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64,
        dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64,
    }
)  # fmt: skip


def input_tensor(expected: ModelTensor, member: str, value: Any, rows: int = 0) -> InferTensor:
    """Returns the tensor for one decoded JSON value, which is the same in each row.

    An input of strings gets a text as it is, a list of texts as its elements if it has a variable
    dimension, and everything else as JSON. Other inputs get a number, a boolean or a list of them.
    `rows` is 0 if the model does not batch.

    Raises:
        OpenAIError: The value does not fit the input.
    """
    if expected.dtype is dtypes.BYTES:
        elements = _texts(expected, member, value)
        data = dtypes.encode_bytes(elements)
    else:
        elements = value if isinstance(value, list) else [value]
        data = _numbers(expected, member, elements)
    shape = _shape(expected, member, len(elements))
    if rows:
        check_input_bytes(member, rows, len(data))
        data, shape = data * rows, (rows, *shape)
    return InferTensor(expected.name, expected.dtype, shape, data)


def check_input_bytes(member: str, count: int, size: int) -> None:
    """Raise OpenAIError if the model would get too much for one request of a client.

    `member` is the one that says how often (`count`) the model gets `size` bytes, or what.
    """
    if count * size > MAX_INPUT_BYTES:
        raise wrong(
            member,
            f"expected at most {MAX_INPUT_BYTES} bytes for the model in one request, got {count} "
            f"times {size}",
        )


def text_tensor(expected: ModelTensor, texts: list[str], *, is_batched: bool) -> InferTensor:
    """Returns the tensor with texts: one in each row, or only one if the model does not batch."""
    shape = _shape(expected, expected.name, 1)
    data = dtypes.encode_bytes([text.encode() for text in texts])
    return InferTensor(
        expected.name, expected.dtype, (len(texts), *shape) if is_batched else shape, data
    )


def as_json(member: str, value: Any) -> bytes:
    """Returns a value as JSON text; OpenAIError if it has what cannot be written again."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise wrong(
            member,
            f"expected integers of up to 64 bits and up to 254 levels as '{member}': {error}",
        ) from None


def _texts(expected: ModelTensor, member: str, value: Any) -> list[bytes]:
    if isinstance(value, str):
        return [value.encode()]
    is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
    if is_list and -1 in expected.dims:
        return [each.encode() for each in value]
    return [as_json(member, value)]


def _numbers(expected: ModelTensor, member: str, values: list[Any]) -> bytes:
    dtype = expected.dtype
    kinds: tuple[type, ...] = (int, float)
    words = "a number"
    if dtype is dtypes.BOOL:
        kinds, words = (bool,), "true or false"
    elif dtype in _INTEGERS:
        kinds, words = (int,), "an integer"
    for each in values:
        if type(each) not in kinds:
            raise wrong(member, f"expected {words} as '{member}', got {shown(each)}")
    try:
        return np.array(values, dtype.numpy).tobytes()
    except OverflowError:
        raise wrong(
            member, f"expected values of type {dtype.name} as '{member}', got {shown(values)}"
        ) from None


def _shape(expected: ModelTensor, member: str, count: int) -> tuple[int, ...]:
    """Returns the shape of `count` elements: the last variable dimension gets all of them."""
    left = count
    shape: list[int] = []
    fixed = prod(size for size in expected.dims if size != -1)
    for size in reversed(expected.dims):
        if size == -1:
            shape.append(left // fixed if fixed else 0)
            left = fixed
        else:
            shape.append(size)
    if prod(shape) != count:
        raise wrong(
            member,
            f"expected {fixed} value(s) as '{member}' for the shape {list(expected.dims)} of the "
            f"model's input, got {count}",
        )
    return tuple(reversed(shape))


def shown(value: Any) -> str:
    """Returns a value of a request as the beginning of its JSON text."""
    try:
        return orjson.dumps(value).decode()[:100]
    except orjson.JSONEncodeError:
        return "more than 64 bits, or too many levels"


SAMPLING = "sampling_parameters"  # the input for all of them in one JSON object, as vLLM's backend
MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_new_tokens")

# What the object with the sampling parameters may have of OpenAI's members.
_SAMPLING_MEMBERS = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "max_tokens",
        "presence_penalty",
        "seed",
        "stop",
        "temperature",
        "top_p",
    }
)
# An answer without these is still an answer. Models find those that are plain values among the
# parameters of the request, as with `generate`.
_HINTS = frozenset(
    {
        "frequency_penalty",
        "metadata",
        "moderation",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "seed",
        "service_tier",
        "store",
        "temperature",
        "top_p",
        "user",
        "verbosity",
    }
)
# An answer without these would be another one, unless they have one of these values.
_CHANGES_NOTHING: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "dimensions": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "web_search_options": (),
}


def _number(low: float, high: float) -> tuple[Any, str]:
    """Returns the type of a number within limits, and its words."""
    return Annotated[float, msgspec.Meta(ge=low, le=high)], f"a number from {low:g} to {high:g}"


def _integer(low: int, high: int) -> tuple[Any, str]:
    return Annotated[int, msgspec.Meta(ge=low, le=high)], f"an integer from {low} to {high}"


_Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-zA-Z0-9_-]{1,64}\Z")]
_Token = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,10}\Z")]


class _Function(msgspec.Struct, gc=False):
    """What a tool calls."""

    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Named(msgspec.Struct, gc=False):
    """What has a name at least."""

    name: _Name


class _FunctionTool(msgspec.Struct, tag_field="type", tag="function", gc=False):
    function: _Function


class _CustomTool(msgspec.Struct, tag_field="type", tag="custom", gc=False):
    custom: _Named


class _NamedFunction(msgspec.Struct, tag_field="type", tag="function", gc=False):
    function: _Named


class _Allowed(msgspec.Struct, gc=False):
    """Some of the tools of a request."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[_NamedFunction | _CustomTool], msgspec.Meta(min_length=1)]


class _AllowedTools(msgspec.Struct, tag_field="type", tag="allowed_tools", gc=False):
    allowed_tools: _Allowed


class _Schema(msgspec.Struct, gc=False):
    """A JSON schema with its name."""

    name: _Name
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class _Text(msgspec.Struct, tag_field="type", tag="text", gc=False):
    pass


class _JsonObject(msgspec.Struct, tag_field="type", tag="json_object", gc=False):
    pass


class _JsonSchema(msgspec.Struct, tag_field="type", tag="json_schema", gc=False):
    json_schema: _Schema


MAX_INTEGER = 2**31 - 1
# The types of members, and their words. A model gets no value out of range, so that it need not
# check what OpenAI refuses.
_FORMS: dict[str, tuple[Any, str]] = {
    "dimensions": _integer(1, MAX_INTEGER),
    "frequency_penalty": _number(-2, 2),
    "functions": (list[_Function], "a list of functions"),
    "function_call": (Literal["none", "auto"] | _Named, "none, auto or an object with a name"),
    "ignore_eos": (bool, "true or false"),
    "logit_bias": (
        dict[_Token, Annotated[float, msgspec.Meta(ge=-100, le=100)]],
        "an object with ids of tokens and numbers from -100 to 100",
    ),
    "min_tokens": _integer(0, MAX_INTEGER),
    "parallel_tool_calls": (bool, "true or false"),
    "presence_penalty": _number(-2, 2),
    "response_format": (
        _Text | _JsonObject | _JsonSchema,
        "an object of type text, json_object or json_schema",
    ),
    "seed": _integer(-(2**63), 2**63 - 1),
    "temperature": _number(0, 2),
    "tool_choice": (
        Literal["none", "auto", "required"] | _NamedFunction | _CustomTool | _AllowedTools,
        "none, auto, required or an object that names tools",
    ),
    "tools": (
        Annotated[list[_FunctionTool | _CustomTool], msgspec.Meta(max_length=128)],
        "a list of up to 128 tools",
    ),
    "top_p": _number(0, 1),
}
_ANYTHING = (Any, "a value")


class Inputs:
    """The inputs and parameters of a request for a model, apart from its texts; `rows` as above."""

    def __init__(self, spec: ModelSpec, rows: int) -> None:
        self._spec = spec
        self._rows = rows
        self._values: dict[str, Any] = {}  # of the inputs
        self._sampling: dict[str, Any] = {}
        self._is_sampling_known = SAMPLING in spec.inputs
        self.tensors: dict[str, InferTensor] = {}
        self.parameters: dict[str, ParameterValue] = {}

    @property
    def size(self) -> int:
        """Their bytes in each request for the model."""
        texts = (each for each in self.parameters.values() if isinstance(each, str))
        return sum(len(each.data) for each in self.tensors.values()) + sum(map(len, texts))

    def takes(self, name: str) -> bool:
        """Returns whether the model does itself what this member asks for."""
        is_sampling = self._is_sampling_known and name in _SAMPLING_MEMBERS
        return name in self._spec.inputs or is_sampling

    def given(self, name: str) -> Any:
        """Returns the value of a member that the model gets; None if it gets none."""
        known = self._values.get(name, self._sampling.get(name))
        return self.parameters.get(name) if known is None else known

    def add(self, name: str, value: Any) -> None:
        """Give the model a value for which it has an input, or that is a sampling parameter."""
        expected = self._spec.inputs.get(name)
        if expected is None:
            self._sampling[name] = value
        else:
            self._values[name] = value
            self.tensors[name] = input_tensor(expected, name, value, self._rows)

    def add_if_declared(self, name: str, value: Any) -> None:
        """Give the model a value if it has an input for it."""
        if name in self._spec.inputs:
            self.add(name, value)

    def add_sampling(self, name: str, value: Any) -> None:
        """Give the model a sampling parameter, if it takes them."""
        if self._is_sampling_known:
            self._sampling[name] = value

    def add_rest(self, members: DocumentMembers) -> None:
        """Take the rest of the members of a request.

        Raises:
            OpenAIError: A member has a wrong type, or the model does not know it and it would make
                the answer another one.
        """
        for name in members.names():
            value = members.value(name, *_FORMS.get(name, _ANYTHING))
            if self.takes(name):
                self.add(name, value)
            elif name in _CHANGES_NOTHING:
                if value not in _CHANGES_NOTHING[name]:
                    raise self._unknown(name)
            elif self._is_sampling_known and name not in _HINTS:
                self._sampling[name] = value
            else:
                self._add_parameter(name, value)

    def finish(self) -> None:
        """Add the sampling parameters, as all are known."""
        if self._sampling:
            text = as_json(SAMPLING, self._sampling).decode()
            self.tensors[SAMPLING] = input_tensor(
                self._spec.inputs[SAMPLING], SAMPLING, text, self._rows
            )

    def with_rows(self, rows: int) -> Inputs:
        """Returns the same inputs for a request with another number of rows."""
        other = Inputs(self._spec, rows)
        for name, value in (*self._values.items(), *self._sampling.items()):
            other.add(name, value)
        other.finish()
        other.parameters = self.parameters
        return other

    def vary(self, name: str, value: Any) -> InferTensor | None:
        """Returns the tensor for another value of a member; None if it changes none."""
        if name in self.tensors:
            return input_tensor(self._spec.inputs[name], name, value, self._rows)
        if name in self._sampling:
            text = as_json(SAMPLING, {**self._sampling, name: value}).decode()
            return input_tensor(self._spec.inputs[SAMPLING], SAMPLING, text, self._rows)
        return None

    def _add_parameter(self, name: str, value: Any) -> None:
        if isinstance(value, (str, int, float)):
            try:
                refuse_reserved(name)
                self.parameters[name] = parameter_value(name, value)
            except InvalidArgumentError as error:
                raise wrong(name, error.message) from None
        elif name not in _HINTS:
            raise self._unknown(name)

    def _unknown(self, name: str) -> Exception:
        return unsupported(
            name, f"the model '{self._spec.name}' does not support '{name}': it has no such input"
        )
