# SPDX-License-Identifier: Apache-2.0
"""Answers chat and completion requests: as a whole, or as events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.protocol.generate import EVENT_STREAM, encode_event
from pytriton.protocol.openai.answers import ChoiceAnswer, Delta, Gathered
from pytriton.protocol.openai.documents import (
    DONE,
    AnswerHead,
    ChoiceEvents,
    Usage,
    encode_answer,
    encode_usage_event,
)
from pytriton.serving.server.http.connection import JSON_TYPE
from pytriton.serving.server.openai.parts import PartsExchange
from pytriton.serving.server.openai.responses import as_openai_error, id_header, respond_error

if TYPE_CHECKING:
    from pytriton.base.messages import InferResponse
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.openai.generation import Generation
    from pytriton.serving.server.http.connection import HttpConnection

_EVENT_TYPE = EVENT_STREAM.encode()


class GenerationExchange(PartsExchange):
    """Reads the answers to all choices.

    Args:
        connection: The connection of the client.
        request_id: The id of the request.
        model: The name of the model as in the request.
        spec: The model.
        generation: What the client asks for.
    """

    __slots__ = ("_answer", "_answers", "_generation")

    def __init__(
        self,
        connection: HttpConnection,
        request_id: str,
        model: str,
        spec: ModelSpec,
        generation: Generation,
    ) -> None:
        super().__init__(connection, request_id)
        self._generation = generation
        kind = "chatcmpl" if generation.is_chat else "cmpl"
        answer_id = f"{kind}-{request_id.removeprefix('req_')}"
        self._answer = AnswerHead(answer_id, int(time.time()), model, generation.is_chat)
        assert spec.openai is not None
        self._answers = [
            ChoiceAnswer(
                spec.openai.text,
                generation.stops,
                generation.max_tokens,
                ends_at_limit=generation.ends_at_limit,
                wants_logprobs=generation.wants_logprobs,
                counts_responses=spec.decoupled,
            )
            for _ in generation.requests
        ]

    def on_part(self, index: int, response: InferResponse | None, *, final: bool) -> bool:
        """Take a response of a choice; returns whether the choice is complete."""
        answer = self._answers[index]
        if response is not None:
            self._take(index, answer.feed(response))
        if final and not answer.is_done:
            self._take(index, answer.finish())
        if answer.is_done:
            self._left -= 1
            if not self._left:
                self._end()
                self.abandon()
        return answer.is_done

    def _take(self, index: int, delta: Delta) -> None:
        """Take what is new in a choice."""
        raise NotImplementedError

    def _end(self) -> None:
        """Respond, as all choices are complete."""
        raise NotImplementedError

    def _usage(self) -> Usage:
        """Returns the tokens of all choices; those of a prompt count once."""
        step = self._generation.choices_per_prompt
        return Usage(
            sum(answer.prompt_tokens for answer in self._answers[::step]),
            sum(answer.completion_tokens for answer in self._answers),
        )


class WholeAnswer(GenerationExchange):
    """Responds with one document when all choices are complete."""

    __slots__ = ("_gathered",)

    def __init__(
        self,
        connection: HttpConnection,
        request_id: str,
        model: str,
        spec: ModelSpec,
        generation: Generation,
    ) -> None:
        super().__init__(connection, request_id, model, spec, generation)
        self._gathered = [Gathered([prefix]) for prefix in generation.prefixes]

    def _take(self, index: int, delta: Delta) -> None:
        self._gathered[index].add(delta)

    def _end(self) -> None:
        body = encode_answer(self._answer, self._gathered, self._usage())
        self._connection.respond(200, (body,), JSON_TYPE, id_header(self._request_id))


class EventsAnswer(GenerationExchange):
    """Sends what is new as events at once; before the first one, an error has its own status."""

    __slots__ = ("_events", "_has_begun")

    def __init__(
        self,
        connection: HttpConnection,
        request_id: str,
        model: str,
        spec: ModelSpec,
        generation: Generation,
    ) -> None:
        super().__init__(connection, request_id, model, spec, generation)
        self._has_begun = False
        self._events = [
            ChoiceEvents(self._answer, index, has_usage=generation.includes_usage)
            for index in range(len(generation.requests))
        ]

    def _take(self, index: int, delta: Delta) -> None:
        if not self._has_begun:
            self._begin()
        self._connection.stream(self._events[index].next(delta))

    def _begin(self) -> None:
        self._has_begun = True
        headers = b"Cache-Control: no-cache\r\n" + id_header(self._request_id)
        self._connection.begin_stream(200, _EVENT_TYPE, headers)
        prefixes = self._generation.prefixes
        pairs = zip(self._events, prefixes, strict=True)
        self._connection.stream(b"".join([events.first(prefix) for events, prefix in pairs]))

    def _end(self) -> None:
        last = DONE
        if self._generation.includes_usage:
            last = encode_usage_event(self._answer, self._usage()) + DONE
        self._connection.stream(last)
        self._connection.end_stream()

    def fail(self, error: Exception) -> None:
        """End the stream with an event that has the error, or respond with it."""
        self.abandon()
        problem = as_openai_error(error)
        if not self._has_begun:
            respond_error(self._connection, problem, self._request_id)
            return
        self._connection.stream(encode_event(problem.body()))
        self._connection.end_stream()
