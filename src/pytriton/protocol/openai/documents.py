# SPDX-License-Identifier: Apache-2.0
"""Writes OpenAI's answers: whole ones, and the events of streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from pytriton.protocol.generate import encode_event
from pytriton.protocol.openai.answers import Delta, Gathered, as_completion

DONE = b"data: [DONE]\n\n"


class Usage(msgspec.Struct):
    """The token counts of a request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def members(self) -> dict[str, int]:
        """Returns the `usage` of an answer."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


class AnswerHead(msgspec.Struct, frozen=True):
    """The members that all parts of an answer repeat."""

    id: str
    created: int
    model: str
    is_chat: bool

    def members(self, *, is_chunk: bool = False) -> dict[str, Any]:
        """Returns the members that are the same in each part."""
        kind = "text_completion"
        if self.is_chat:
            kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def encode_answer(answer: AnswerHead, choices: Sequence[Gathered], usage: Usage) -> bytes:
    write = _chat_choice if answer.is_chat else _completion_choice
    document = answer.members()
    document["choices"] = [write(index, choice) for index, choice in enumerate(choices)]
    document["usage"] = usage.members()
    return orjson.dumps(document)


def _chat_choice(index: int, choice: Gathered) -> dict[str, Any]:
    calls, text = choice.tool_calls(), "".join(choice.texts)
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message["tool_calls"] = calls
        message["content"] = text or None
    return {
        "index": index,
        "message": message,
        "logprobs": _chat_logprobs(choice.logprobs),
        "finish_reason": choice.finish_reason,
    }


def _completion_choice(index: int, choice: Gathered) -> dict[str, Any]:
    return {
        "index": index,
        "text": "".join(choice.texts),
        "logprobs": as_completion(choice.logprobs, 0) if choice.logprobs else None,
        "finish_reason": choice.finish_reason,
    }


def _chat_logprobs(tokens: Sequence[dict[str, Any]] | None) -> dict[str, Any] | None:
    return {"content": tokens, "refusal": None} if tokens else None


class ChoiceEvents:
    """Writes the events of one choice of a stream.

    A stream has an event for each token, so all but the text is written once: 0.6 us for an event
    instead of 2. With `has_usage`, another event at the end has the usage, so that these have none.
    """

    def __init__(self, answer: AnswerHead, index: int, *, has_usage: bool) -> None:
        self._is_chat = answer.is_chat
        self._index = index
        self._offset = 0  # characters before the next event
        members = orjson.dumps(answer.members(is_chunk=True))[:-1]
        self._begin = b'data: %b,"choices":[' % members
        self._end = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"
        opening, closing = (b'"delta":{"content":', b"}") if self._is_chat else (b'"text":', b"")
        self._before_text = b'%b{"index":%d,%b' % (self._begin, index, opening)
        self._after_text = b'%b,"logprobs":null,"finish_reason":null}%b' % (closing, self._end)

    def first(self, prefix: str = "") -> bytes:
        """Returns the event before the answer: the role, or the prompt if the client wants it."""
        if self._is_chat:
            delta = {"role": "assistant", "content": "", "refusal": None}
            return self._event({"delta": delta, "logprobs": None, "finish_reason": None})
        return self.next(Delta(prefix)) if prefix else b""

    def next(self, delta: Delta) -> bytes:
        """Returns the events for a delta; none if it is empty."""
        text, calls, logprobs, reason = delta
        if calls is None and logprobs is None and reason is None:
            if not text:
                return b""
            self._offset += len(text)
            return b"".join((self._before_text, orjson.dumps(text), self._after_text))
        return self._events(delta)

    def _events(self, delta: Delta) -> bytes:
        if not self._is_chat:
            logprobs = as_completion(delta.logprobs, self._offset) if delta.logprobs else None
            self._offset += len(delta.text)
            reason = delta.finish_reason
            return self._event({"text": delta.text, "logprobs": logprobs, "finish_reason": reason})
        events = b""
        if delta.text or delta.logprobs or delta.tool_calls:
            said: dict[str, Any] = {"content": delta.text} if delta.text else {}
            if delta.tool_calls:
                said["tool_calls"] = delta.tool_calls
            logprobs = _chat_logprobs(delta.logprobs)
            events = self._event({"delta": said, "logprobs": logprobs, "finish_reason": None})
        if delta.finish_reason is not None:
            reason = delta.finish_reason
            events += self._event({"delta": {}, "logprobs": None, "finish_reason": reason})
        return events

    def _event(self, members: dict[str, Any]) -> bytes:
        choice = orjson.dumps({"index": self._index, **members})
        return b"".join((self._begin, choice, self._end))


def encode_usage_event(answer: AnswerHead, usage: Usage) -> bytes:
    """Encode the event at the end of a stream that has the usage."""
    document = answer.members(is_chunk=True)
    document["choices"] = []
    document["usage"] = usage.members()
    return encode_event(orjson.dumps(document))


def model_document(name: str, created: int) -> dict[str, Any]:
    """Returns the entry of a model in the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "pytriton"}
