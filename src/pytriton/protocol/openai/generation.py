# SPDX-License-Identifier: Apache-2.0
"""Chat and completion requests: reads them, and makes requests for the model out of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.messages import InferRequest, InferTensor, RequestFields
from pytriton.base.model_spec import ModelSpec, OpenAISpec
from pytriton.protocol.openai.errors import OpenAIError, unsupported, wrong
from pytriton.protocol.openai.inputs import (
    MAX_INPUT_BYTES,
    MAX_INTEGER,
    MAX_TOKENS,
    Inputs,
    as_json,
    input_tensor,
    shown,
    text_tensor,
)
from pytriton.protocol.openai.members import DocumentMembers, decode, decode_objects

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SILENT_ROLES = ("assistant", "function")  # may have no content, as they call something
_LIST = "a list of messages with a role and a content"
MAX_PARTS = 10_000  # messages of a chat, and parts of all of them; each costs a microsecond


class _Role(msgspec.Struct, gc=False):
    """The required member of a message."""

    role: str


class _Type(msgspec.Struct, gc=False):
    """The required member of a part of a message."""

    type: str


class MessagePart(msgspec.Struct):
    """A part of a message: a text, or something that only some models understand."""

    type: str
    text: str = ""
    refusal: str = ""


class Message(msgspec.Struct):
    """One message; members that only models understand are not here."""

    role: str
    content: msgspec.Raw = msgspec.Raw()  # a text or parts, which only some models understand
    tool_calls: msgspec.Raw = msgspec.Raw()


class ChatMessages(msgspec.Struct):
    """The messages of a request."""

    json: bytes  # as the client wrote them
    read: list[Message]

    def contents(self) -> list[tuple[str, str]]:
        """Returns the role and the text of each message, for a template.

        Raises:
            OpenAIError: A message has more than text.
        """
        contents = []
        left = MAX_PARTS
        for index, each in enumerate(self.read):
            text, count = _text(index, each, left)
            left -= count
            contents.append(("tool" if each.role == "function" else each.role, text))
        return contents


def take_messages(members: DocumentMembers) -> ChatMessages:
    """Take the messages of a request; OpenAIError if there are none, or they are malformed."""
    if "messages" not in members:
        raise wrong("messages", f"expected {_LIST} as 'messages', got none")
    json = members.peek("messages")
    members.drop("messages")
    parts = decode_objects(json, _Role, "messages", _LIST, MAX_PARTS)
    if not parts:
        raise wrong("messages", f"expected {_LIST} as 'messages', got an empty list")
    read = [
        decode(part, Message, f"messages[{index}]", "an object with a role and a content")
        for index, part in enumerate(parts)
    ]
    for index, message in enumerate(read):
        if message.role not in _ROLES:
            raise wrong(
                f"messages[{index}].role",
                f"expected one of {', '.join(_ROLES)} as the role of message {index}, "
                f"got '{message.role}'",
            )
        _check_content(index, message)
    return ChatMessages(json, read)


def _check_content(index: int, message: Message) -> None:
    """Raise OpenAIError if a model that takes messages would look for a content in vain."""
    where, raw = f"messages[{index}].content", bytes(message.content)
    if raw.startswith(b"["):
        decode(raw, list[_Type], where, "a text or a list of parts with a type")
    elif raw not in (b"", b"null"):
        decode(raw, str, where, "a text or a list of parts")
    elif message.role not in _SILENT_ROLES:
        raise wrong(where, f"expected a text or a list of parts as '{where}', got none")


def _text(index: int, message: Message, most_parts: int) -> tuple[str, int]:
    """Returns the text of a message, and how many parts it has."""
    where, raw = f"messages[{index}].content", bytes(message.content)
    if raw in (b"", b"null"):
        return bytes(message.tool_calls).decode(), 0  # the only thing that such a message may say
    if not raw.startswith(b"["):
        text: str = decode(raw, str, where, "a text or a list of parts")
        return text, 0
    parts = decode_objects(raw, _Type, where, "a list of parts", MAX_PARTS)
    if len(parts) > most_parts:
        raise wrong(where, f"expected at most {MAX_PARTS} parts in all messages")
    content = [decode(part, MessagePart, where, "a part with a type") for part in parts]
    for part in content:
        if part.type not in ("text", "refusal"):
            raise wrong(
                where,
                f"expected only texts in message {index}, got a part of type '{part.type}': the "
                "model takes no messages, only a prompt",
            )
    return "".join(part.text or part.refusal for part in content), len(parts)


MAX_CHOICES = 128
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256  # each response is searched for the beginnings of all of them
MAX_LOGPROBS = 20  # of chats
MAX_COMPLETION_LOGPROBS = 5
_TOKENS = re.compile(rb"\s*\[[\s\[]*[-0-9]")  # an array of numbers, or of such arrays


class Generation(msgspec.Struct, kw_only=True):
    """The options of a client, and the requests for the model: one for each choice."""

    requests: list[InferRequest]
    is_chat: bool
    is_stream: bool
    includes_usage: bool  # in a stream
    choices_per_prompt: int
    stops: tuple[str, ...]  # at which the server cuts; empty if the model does
    max_tokens: int  # 0: no limit
    ends_at_limit: bool  # the server ends the answer, as the model does not know the limit
    prefixes: list[str]  # of each choice, which the client wants before the answer
    wants_logprobs: bool


class StreamOptions(msgspec.Struct):
    """The options of a stream."""

    include_usage: bool = False


def read_generation(members: DocumentMembers, spec: ModelSpec, *, is_chat: bool) -> Generation:
    """Read a chat or a completion request, of which the model's name was taken.

    Raises:
        OpenAIError: It is malformed, or asks for something that this model cannot do.
    """
    openai = spec.openai
    assert openai is not None
    is_stream = members.flag("stream")
    includes_usage = _includes_usage(members, is_stream=is_stream)
    inputs = Inputs(spec, rows=1 if spec.max_batch_size else 0)
    texts = _take_texts(members, spec, openai, inputs, is_chat=is_chat)
    count = members.integer("n", 1, 1, MAX_CHOICES)
    if len(texts) * count > MAX_CHOICES:
        raise wrong("n", f"expected at most {MAX_CHOICES} choices, got {len(texts) * count}")
    is_echo = not is_chat and not inputs.takes("echo") and members.flag("echo")
    max_tokens, ends_at_limit = _limit_tokens(members, spec, inputs)
    stops = _take_stops(members, inputs)
    if is_chat and not openai.messages:
        stops = (*stops, *openai.template.stop)
    wants_logprobs = _take_logprobs(members, spec, inputs, is_chat=is_chat)
    _leave_out_tools(members)
    if "best_of" in members and not inputs.takes("best_of"):
        members.integer("best_of", count, count, count)
    _set_flags(inputs, is_stream=is_stream)
    seed = _take_seed(members, inputs)
    inputs.add_rest(members)
    _check_asked(inputs, max_tokens)
    inputs.finish()
    _check_copies(inputs.size, texts, count, is_echo=is_echo)
    return Generation(
        requests=_requests(spec, openai, inputs, texts, count, seed),
        is_chat=is_chat,
        is_stream=is_stream,
        includes_usage=includes_usage,
        choices_per_prompt=count,
        stops=stops,
        max_tokens=max_tokens,
        ends_at_limit=ends_at_limit,
        prefixes=[text if is_echo else "" for text in texts for _ in range(count)],
        wants_logprobs=wants_logprobs,
    )


def _check_copies(size: int, texts: list[str], count: int, *, is_echo: bool) -> None:
    """Raise OpenAIError if the model, or with `echo` the client, would get too much of the same.

    What a client sends once is limited by the size of its request.
    """
    text_size = sum(map(len, texts))
    whole = count * (len(texts) * size + text_size)
    copied = count * text_size if is_echo else whole - size - text_size
    if copied > MAX_INPUT_BYTES:
        one = "echo" if is_echo else "prompt"
        raise wrong(
            one if count == 1 else "n",
            f"expected at most {MAX_INPUT_BYTES} bytes in copies of inputs and prompts, got "
            f"{copied}",
        )


def _includes_usage(members: DocumentMembers, *, is_stream: bool) -> bool:
    if "stream_options" not in members:
        return False
    options: StreamOptions = members.take("stream_options", StreamOptions, "an object")
    if not is_stream:
        raise wrong("stream_options", "expected 'stream_options' only together with 'stream': true")
    return options.include_usage


def _take_texts(
    members: DocumentMembers, spec: ModelSpec, openai: OpenAISpec, inputs: Inputs, *, is_chat: bool
) -> list[str]:
    """Take the prompts; a chat has one, which is empty if the model takes its messages."""
    if not is_chat:
        return take_prompts(members, "prompt")
    messages: ChatMessages = take_messages(members)
    if openai.messages:
        expected = spec.inputs[openai.messages]
        rows = 1 if spec.max_batch_size else 0
        text = messages.json.decode()
        inputs.tensors[openai.messages] = input_tensor(expected, "messages", text, rows)
        if openai.prompt not in spec.required_inputs:
            return [""]
    return [openai.template.prompt(messages.contents())]


def take_prompts(members: DocumentMembers, name: str) -> list[str]:
    """Take one or several texts; OpenAIError if there are none, or tokens."""
    if name not in members:
        raise wrong(name, f"expected a text or a list of texts as '{name}', got none")
    if _TOKENS.match(members.peek(name)):
        raise wrong(
            name,
            f"expected a text or a list of texts as '{name}', got tokens: the server does not "
            "know the tokens of a model",
        )
    texts = members.texts(name)
    if not texts:
        raise wrong(name, f"expected a text or a list of texts as '{name}', got an empty list")
    return texts


def _limit_tokens(members: DocumentMembers, spec: ModelSpec, inputs: Inputs) -> tuple[int, bool]:
    """Give the model its limit of tokens; returns it, and whether the server has to count them."""
    given = [name for name in MAX_TOKENS[:2] if name in members]
    limits = [members.integer(name, 0, 1, MAX_INTEGER) for name in given]
    if not limits:
        return 0, False
    limit = min(limits)
    for name in MAX_TOKENS:
        if inputs.takes(name):
            inputs.add(name, limit)
            return limit, False
    if not spec.decoupled:
        raise unsupported(
            given[0],
            f"the model '{spec.name}' does not support '{given[0]}': it has no input "
            f"'{MAX_TOKENS[0]}', and it answers all at once",
        )
    return limit, True


def _take_stops(members: DocumentMembers, inputs: Inputs) -> tuple[str, ...]:
    """Give the model its stop strings; returns those at which the server has to cut."""
    stops = [stop for stop in members.texts("stop") if stop]
    if not stops:
        return ()
    if inputs.takes("stop"):
        inputs.add("stop", stops)
        return ()
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise wrong(
            "stop",
            f"expected at most {MAX_STOPS} texts of at most {MAX_STOP_CHARACTERS} characters as "
            f"'stop', got {len(stops)} with up to {max(map(len, stops))}",
        )
    return tuple(stops)


def _take_logprobs(
    members: DocumentMembers, spec: ModelSpec, inputs: Inputs, *, is_chat: bool
) -> bool:
    """Give the model the options of logprobs; returns whether the client wants them."""
    if is_chat:
        wants = members.flag("logprobs")
        count = members.integer("top_logprobs", 0, 0, MAX_LOGPROBS)
        if count and not wants:
            raise wrong("top_logprobs", "expected 'top_logprobs' only with 'logprobs': true")
    else:
        wants = "logprobs" in members
        count = members.integer("logprobs", 0, 0, MAX_COMPLETION_LOGPROBS)
    if not wants:
        return False
    if "logprobs" not in spec.outputs:
        raise unsupported(
            "logprobs",
            f"the model '{spec.name}' does not support 'logprobs': it has no such output",
        )
    inputs.add_if_declared("logprobs", True if is_chat else count)
    inputs.add_if_declared("top_logprobs", count)
    inputs.add_if_declared("return_logprobs", True)
    inputs.add_sampling("logprobs", max(count, 1))
    return True


def _leave_out_tools(members: DocumentMembers) -> None:
    """Drop tools that must not be called: a model without tools can answer then, too."""
    if "tools" in members and "tool_choice" in members and members.peek("tool_choice") == b'"none"':
        members.drop("tools", "tool_choice")


def _check_asked(inputs: Inputs, max_tokens: int) -> None:
    """Raise OpenAIError if members do not fit each other, or a schema is none."""
    least = inputs.given("min_tokens")
    if max_tokens and least is not None and least > max_tokens:
        raise wrong("min_tokens", f"expected at most 'max_tokens' as 'min_tokens', got {least}")
    tools = inputs.given("tools") or ()
    for index, tool in enumerate(tools):
        parameters = tool["type"] == "function" and tool["function"].get("parameters")
        if parameters:
            check_schema("tools", f"the parameters of tool {index}", parameters)
    choice = inputs.given("tool_choice")
    if choice not in (None, "none", "auto"):
        _check_choice(choice, tools)
    form = inputs.given("response_format") or {}
    if "json_schema" in form:
        check_schema("response_format", "the schema", form["json_schema"]["schema"])


def _check_choice(choice: Any, tools: Sequence[dict[str, Any]]) -> None:
    """Raise OpenAIError if one must be called that is not among the tools."""
    known = {tool[tool["type"]]["name"] for tool in tools}
    if choice == "required":
        asked = []
    elif choice["type"] == "allowed_tools":
        asked = [each[each["type"]]["name"] for each in choice["allowed_tools"]["tools"]]
    else:
        asked = [choice[choice["type"]]["name"]]
    missing = sorted(set(asked) - known)
    if missing or not known:
        got = f", got {', '.join(missing)}" if missing else ""
        raise wrong(
            "tool_choice",
            f"expected tools of this request as 'tool_choice', which has {len(known)}{got}",
        )


_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
# The keywords of JSON schemas that have schemas: one or true or false, lists, and objects of them.
_WITH_SCHEMA = (
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_WITH_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_WITH_OBJECTS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


def check_schema(param: str, where: str, schema: Any) -> None:
    """Raise OpenAIError if a JSON schema is malformed: a model could not follow it."""
    left = [schema]
    while left:
        each = left.pop()
        if isinstance(each, bool):
            continue
        if not isinstance(each, dict):
            raise _wrong_schema(param, where, "an object", each)
        types = each.get("type", [])
        names = types if isinstance(types, list) else [types]
        if not all(isinstance(name, str) and name in _TYPES for name in names):
            raise _wrong_schema(param, where, "a type of JSON as 'type'", types)
        required = each.get("required", [])
        if not isinstance(required, list) or not all(isinstance(it, str) for it in required):
            raise _wrong_schema(param, where, "a list of names as 'required'", required)
        if not isinstance(each.get("enum", [0]), list) or not each.get("enum", [0]):
            raise _wrong_schema(param, where, "a list of values as 'enum'", each["enum"])
        left += _parts_of(param, where, each)


def _parts_of(param: str, where: str, schema: dict[str, Any]) -> list[Any]:
    """Returns the schemas in a schema."""
    parts = [schema[name] for name in _WITH_SCHEMA if name in schema]
    if isinstance(schema.get("items"), list):  # one for each element, until draft 2019-09
        parts.remove(schema["items"])
        parts += schema["items"]
    for name in _WITH_LISTS:
        if name in schema:
            if not isinstance(schema[name], list) or not schema[name]:
                raise _wrong_schema(param, where, f"a list of schemas as '{name}'", schema[name])
            parts += schema[name]
    for name in _WITH_OBJECTS:
        if name in schema:
            if not isinstance(schema[name], dict):
                raise _wrong_schema(param, where, f"an object as '{name}'", schema[name])
            parts += schema[name].values()
    return parts


def _wrong_schema(param: str, where: str, expected: str, found: Any) -> OpenAIError:
    return wrong(param, f"expected {expected} in {where}, got {shown(found)}")


def _set_flags(inputs: Inputs, *, is_stream: bool) -> None:
    """Set inputs that no member is for; those that begin with `return_` are vLLM's."""
    inputs.add_if_declared("stream", is_stream)
    if not is_stream:  # streams never repeat the prompt
        inputs.add_if_declared("exclude_input_in_output", True)
    for name in ("finish_reason", "num_input_tokens", "num_output_tokens"):
        inputs.add_if_declared(f"return_{name}", True)


def _take_seed(members: DocumentMembers, inputs: Inputs) -> int | None:
    """Give the model its seed; returns it if the choices need different ones."""
    if "seed" not in members or not inputs.takes("seed"):
        return None
    seed = members.integer("seed", 0, -(2**63), 2**63 - 1)
    inputs.add("seed", seed)
    return seed


def _requests(
    spec: ModelSpec,
    openai: OpenAISpec,
    inputs: Inputs,
    texts: list[str],
    count: int,
    seed: int | None,
) -> list[InferRequest]:
    requests = []
    for text in texts:
        tensors: dict[str, InferTensor] = dict(inputs.tensors)
        if text or not openai.messages or openai.messages not in tensors:
            name, given = openai.prompt, text
            if not name:  # a model of chats only gets the prompt as the only message of one
                name = openai.messages
                given = as_json("prompt", [{"role": "user", "content": text}]).decode()
            is_batched = spec.max_batch_size > 0
            tensors[name] = text_tensor(spec.inputs[name], [given], is_batched=is_batched)
        for index in range(count):
            request = InferRequest(
                spec.name, dict(tensors), fields=RequestFields("", dict(inputs.parameters))
            )
            varied = inputs.vary("seed", seed + index) if seed is not None and index else None
            if varied is not None:
                request.inputs[varied.name] = varied
            requests.append(request)
    return requests


def check_served(spec: ModelSpec, name: str, route: str) -> None:
    """Raise OpenAIError if a route (chat, completions or embeddings) does not serve a model."""
    openai: Any = spec.openai
    if openai is None:
        raise OpenAIError(
            404,
            f"The model '{name}' is not served here: it has not opted in to OpenAI's routes.",
            param="model",
            code="model_not_found",
        )
    if not getattr(openai, route):
        routes = [each for each in ("chat", "completions", "embeddings") if getattr(openai, each)]
        raise OpenAIError(
            404,
            f"The model '{name}' does not serve {route}, only {', '.join(routes)}.",
            param="model",
            code="model_not_found",
        )
