# SPDX-License-Identifier: Apache-2.0
"""Reads the responses of a model: a text piece by piece, tool calls, tokens, and the end.

Texts are cut at stop strings, also where these come in several pieces. Log probabilities come as
models give them, and go out in the two forms of OpenAI's answers.
"""

from __future__ import annotations

import codecs
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson

from pytriton.base import dtypes
from pytriton.base.errors import InternalError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.openai_routes import COMPLETION_TOKENS, FINISH_REASON, PROMPT_TOKENS

_FORM = (
    "expected a JSON list of objects with 'token' and 'logprob' in the output 'logprobs', or of "
    "vLLM's objects by token id"
)

MAX_ANSWER_BYTES = 16 << 20  # of a text that the server gathers

_UNFINISHED = frozenset({"", "None", "null"})  # vLLM's backend says None until the end
_new_decoder = codecs.getincrementaldecoder("utf-8")


class Delta(NamedTuple):
    """The new part of an answer."""

    text: str = ""
    tool_calls: list[dict[str, Any]] | None = None
    logprobs: list[dict[str, Any]] | None = None
    finish_reason: str | None = None  # set in the last one


class ChoiceAnswer:
    """Reads the responses for one choice, and ends it where the client wants that.

    Args:
        text_name: The output with the text.
        stops: Where to cut the text; none if the model does it.
        max_tokens: The limit that the client has set; 0 for none.
        ends_at_limit: Whether to end the answer after so many responses, because the model does not
            know the limit.
        wants_logprobs: Whether to read them.
        counts_responses: Whether a response with a text counts as a token, if the model does not
            count them.
    """

    def __init__(
        self,
        text_name: str,
        stops: tuple[str, ...] = (),
        max_tokens: int = 0,
        *,
        ends_at_limit: bool = False,
        wants_logprobs: bool = False,
        counts_responses: bool = True,
    ) -> None:
        self._text_name = text_name
        self._cutter = StopCutter(stops) if stops else None
        self._max_tokens = max_tokens
        self._ends_at_limit = ends_at_limit
        self._wants_logprobs = wants_logprobs
        self._counts_responses = counts_responses
        self._decoder = _new_decoder("replace")
        self._text_count = 0  # responses with a text
        self._counted_tokens: int | None = None
        self._reason: str | None = None  # as the model says
        self._called: set[int] = set()  # indices of tool calls
        self._size = 0
        self.prompt_tokens = 0
        self.is_done = False

    @property
    def completion_tokens(self) -> int:
        """The number that the model has counted, or that of its responses."""
        if self._counted_tokens is None:
            return self._text_count if self._counts_responses else 0
        return self._counted_tokens

    def feed(self, response: InferResponse) -> Delta:
        """Read a response; `is_done` is set afterwards if the answer ends with it.

        Raises:
            InternalError: An output is not what it should be, or the text is too long.
        """
        text, calls, logprobs = "", None, None
        for tensor in response.outputs:
            name = tensor.name
            if name == self._text_name:
                raw = _joined(tensor)
                self._size += len(raw)
                self._text_count += 1
                text = self._decoder.decode(raw)
            elif name == "tool_calls":
                calls = self._read_calls(_joined(tensor))
            elif name == "logprobs":
                if self._wants_logprobs:
                    logprobs = read_logprobs(_joined(tensor))
            else:
                self._read_other(name, tensor)
        if self._size > MAX_ANSWER_BYTES:
            raise InternalError(
                f"expected an answer of at most {MAX_ANSWER_BYTES} bytes, got {self._size}"
            )
        if self._cutter is not None and text:
            text, self.is_done = self._cutter.feed(text)
            if self.is_done:
                return Delta(text, calls, logprobs, "stop")
        if self._ends_at_limit and self._text_count >= self._max_tokens:
            self.is_done = True
            return Delta(text + self._rest(), calls, logprobs, self._end("length"))
        return Delta(text, calls, logprobs)

    def finish(self) -> Delta:
        """Returns the rest of the answer when the model has ended."""
        self.is_done = True
        reason = "tool_calls" if self._called else "stop"
        if self._max_tokens and self.completion_tokens >= self._max_tokens:
            reason = "length"
        return Delta(self._rest(), finish_reason=self._end(reason))

    def _end(self, otherwise: str) -> str:
        return otherwise if self._reason is None else self._reason

    def _rest(self) -> str:
        """Returns the text that was held back: half a character, or half a stop string."""
        text = self._decoder.decode(b"", final=True)
        if self._cutter is None:
            return text
        cut, is_cut = self._cutter.feed(text)
        return cut if is_cut else cut + self._cutter.finish()

    def _read_other(self, name: str, tensor: InferTensor) -> None:
        if name == FINISH_REASON:
            reason = _joined(tensor).decode("utf-8", "replace")
            self._reason = None if reason in _UNFINISHED else reason
        elif name in PROMPT_TOKENS:
            # A model may say it once; its other responses have the default of its type, 0.
            self.prompt_tokens = _sum(tensor) or self.prompt_tokens
        elif name in COMPLETION_TOKENS:
            self._counted_tokens = (self._counted_tokens or 0) + _sum(tensor)

    def _read_calls(self, raw: bytes) -> list[dict[str, Any]] | None:
        try:
            calls = orjson.loads(raw) if raw.strip() else []
        except orjson.JSONDecodeError as error:
            raise InternalError(f"expected JSON in the output 'tool_calls': {error}") from None
        if not isinstance(calls, list) or not all(map(_is_call, calls)):
            raise InternalError(
                "expected a list of tool calls, as in OpenAI's answers, in the output "
                f"'tool_calls', got {raw[:100]!a}"
            )
        return [self._whole_call(call) for call in calls] or None

    def _whole_call(self, call: dict[str, Any]) -> dict[str, Any]:
        """Returns a call with what a client expects; a later part of one stays as it is."""
        index = call.get("index", len(self._called))
        function = dict(call.get("function") or {})
        for key in ("name", "arguments"):
            if key in call:
                function[key] = call[key]
        if not isinstance(function.get("arguments", ""), str):
            function["arguments"] = orjson.dumps(function["arguments"]).decode()
        if index in self._called:
            return {"index": index, "function": function}
        self._called.add(index)
        return {
            "index": index,
            "id": call.get("id") or f"call_{secrets.token_hex(12)}",
            "type": call.get("type", "function"),
            "function": {"name": "", "arguments": "", **function},
        }


class Gathered(msgspec.Struct):
    """The parts of an answer that is sent as a whole."""

    texts: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    logprobs: list[dict[str, Any]] = []
    finish_reason: str | None = None

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.logprobs += delta.logprobs or ()
        self.finish_reason = delta.finish_reason
        for call in delta.tool_calls or ():
            known = self.calls.setdefault(call["index"], call)
            if known is not call:
                more = call["function"].get("arguments", "")
                known["function"]["arguments"] += more

    def tool_calls(self) -> list[dict[str, Any]]:
        """Returns the calls without the indices that streams have."""
        return [
            {key: value for key, value in call.items() if key != "index"}
            for _, call in sorted(self.calls.items())
        ]


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and isinstance(call.get("index", 0), int)
        and isinstance(call.get("function") or {}, dict)
    )


def prompt_tokens(response: InferResponse) -> int:
    """Returns the tokens of the prompt that a response tells; 0 if it tells nothing."""
    return sum(_sum(tensor) for tensor in response.outputs if tensor.name in PROMPT_TOKENS)


def _joined(tensor: InferTensor) -> bytes:
    """Returns the elements of a tensor of strings as one."""
    raw = bytes(tensor.data)
    if int.from_bytes(raw[:4], "little") == len(raw) - 4:  # one element, as almost always
        return raw[4:]
    return b"".join(dtypes.decode_bytes(raw))


def _sum(tensor: InferTensor) -> int:
    if tensor.dtype is dtypes.BYTES:
        raise InternalError(f"expected a number in the output '{tensor.name}', got a string")
    return int(np.frombuffer(tensor.data, tensor.dtype.numpy).sum())


class StopCutter:
    """Passes a text on as it comes, but what might be the beginning of a stop string only later.

    The text ends before the stop string that is complete first; if two are, before the longer one.
    So it does not matter in which pieces the text comes. No stop string is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._beginnings = {stop[:size] for stop in stops for size in range(1, len(stop))}
        # Most pieces of a text end with none of these: 2.5 us for a piece instead of 13.
        self._last_characters = frozenset(each[-1] for each in self._beginnings)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Returns the text to pass on after the next piece, and whether the text has ended."""
        text = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self._held = ""
            return text[: min(ends)[1]], True
        end = len(text) - self._count_held(text)
        self._held = text[end:]
        return text[:end], False

    def finish(self) -> str:
        """Returns the text that was held back, as no more comes."""
        held, self._held = self._held, ""
        return held

    def _count_held(self, text: str) -> int:
        """Returns how many characters at the end are the longest beginning of a stop string."""
        if text[-1:] not in self._last_characters:
            return 0
        for size in range(min(len(text), self._longest - 1), 0, -1):
            if text[-size:] in self._beginnings:
                return size
        return 0


def read_logprobs(raw: bytes) -> list[dict[str, Any]]:
    """Read the output of a model.

    Each element is an object with `token`, `logprob` and maybe `top_logprobs`, a list of such
    objects; or, as vLLM's backend gives them, an object by token id, the chosen token first.

    Returns:
        The tokens in the form of chats.

    Raises:
        InternalError: It is something else.
    """
    try:
        tokens = orjson.loads(raw) if raw.strip() else []
        return [_token(each) for each in tokens or ()]
    except (orjson.JSONDecodeError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InternalError(f"{_FORM}, got {raw[:100]!a}") from error


def as_completion(tokens: Sequence[dict[str, Any]], offset: int) -> dict[str, Any]:
    """Returns tokens in the form of completions; `offset` characters come before the first."""
    offsets = []
    for each in tokens:
        offsets.append(offset)
        offset += len(each["token"])
    return {
        "tokens": [each["token"] for each in tokens],
        "token_logprobs": [each["logprob"] for each in tokens],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in each["top_logprobs"]} for each in tokens
        ],
        "text_offset": offsets,
    }


def _token(each: dict[str, Any]) -> dict[str, Any]:
    if "token" in each:
        top = [_entry(one["token"], one["logprob"]) for one in each.get("top_logprobs") or ()]
        return {**_entry(each["token"], each["logprob"]), "top_logprobs": top}
    entries = [_entry(*_of_token_id(key, value)) for key, value in each.items()]
    return {**entries[0], "top_logprobs": entries}


def _of_token_id(key: str, value: Any) -> tuple[str, float]:
    if isinstance(value, dict):
        return value.get("decoded_token") or key, value["logprob"]
    return key, float(value)


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": float(logprob), "bytes": list(token.encode())}
