# SPDX-License-Identifier: Apache-2.0
"""Requests of OpenAI's clients, each of which becomes one or several requests for a model.

The exchanges gather the answers of the model, or send them as events, and make errors of OpenAI's
form.
"""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING

from pytriton.base.errors import ErrorCode, InternalError, error_for_clients
from pytriton.base.messages import RequestGroup
from pytriton.protocol.generate import EVENT_STREAM, encode_event
from pytriton.protocol.openai.answers import ChoiceAnswer, Delta, Gathered, prompt_tokens
from pytriton.protocol.openai.documents import (
    DONE,
    AnswerHead,
    ChoiceEvents,
    Usage,
    encode_answer,
    encode_usage_event,
)
from pytriton.protocol.openai.embeddings import encode_embeddings, read_rows
from pytriton.protocol.openai.errors import OpenAIError, from_server_error
from pytriton.serving.server.api.background import SMALL_BYTES
from pytriton.serving.server.http.connection import JSON_TYPE
from pytriton.serving.server.http.handler import HttpExchange
from pytriton.serving.server.http.infer import EngineExchange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import InferRequest, InferResponse
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.openai.embeddings import EmbeddingJob, Rows
    from pytriton.protocol.openai.generation import Generation
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.http.bodies import Bodies
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.infer import EngineService
    from pytriton.serving.server.http.request import RequestHead

logger = logging.getLogger(__name__)

_group_numbers = itertools.count(1)
_REQUEST_ID = b"x-request-id"
_is_safe_id = re.compile(rb"[\x21-\x7e]{1,128}").fullmatch
_EVENT_TYPE = EVENT_STREAM.encode()


def request_id(head: RequestHead) -> str:
    """Returns the id of a request: that of its header, or a new one."""
    given = head.headers.get(_REQUEST_ID, b"")
    return given.decode("ascii") if _is_safe_id(given) else f"req_{secrets.token_hex(12)}"


def id_header(request_id: str) -> bytes:
    """Returns the header line with the id of a request."""
    return b"x-request-id: %b\r\n" % request_id.encode()


def as_openai_error(error: Exception) -> OpenAIError:
    """Returns the error for the client; an unexpected exception is logged, and not sent."""
    if isinstance(error, OpenAIError):
        return error
    failure = error_for_clients(error, "it served a request of OpenAI's routes")
    if failure is not error and failure.code is ErrorCode.INTERNAL:
        return OpenAIError(500, failure.message, code="internal_error", kind="server_error")
    return from_server_error(failure)


def respond_error(connection: HttpConnection, error: OpenAIError, request_id: str) -> None:
    """Answer with an error."""
    logger.debug("HTTP error %d: %s", error.status, error.message)
    headers = error.headers + id_header(request_id)
    connection.respond(error.status, (error.body(),), JSON_TYPE, headers)


class ModelRequest(EngineExchange):
    """One request for the model; it passes everything on to its owner."""

    __slots__ = ("_index", "_owner")

    def __init__(
        self,
        service: EngineService,
        model: ServedModel,
        connection: HttpConnection,
        owner: PartsExchange,
        index: int,
    ) -> None:
        super().__init__(service, model, "", connection)
        self._owner: PartsExchange | None = owner
        self._index = index

    def start(
        self, head: RequestHead, request: InferRequest, fitting: ServedModel | None = None
    ) -> None:
        """Pass the request to the engine."""
        super().start(head, request, fitting)
        if self._owner is None:  # it was answered at once, maybe before its end
            super().abandon()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Pass a response of the model on."""
        owner = self._owner
        if owner is None:
            return
        is_done = owner.on_part(self._index, response, final=final)
        if final:
            self._owner = None
        elif is_done:
            self.abandon()

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """End the whole request."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.fail(error)

    def on_refused(self, error: ServerError) -> None:
        """End the whole request."""
        self.on_error(error)

    def abandon(self) -> None:
        """Cancel the request: nobody needs more responses."""
        self._owner = None
        super().abandon()


class PartsExchange(HttpExchange):
    """Answers a request when all its parts are answered, or one of them has failed."""

    __slots__ = ("_connection", "_left", "_parts", "_request_id")

    def __init__(self, connection: HttpConnection, request_id: str) -> None:
        self._connection = connection
        self._request_id = request_id
        self._parts: Sequence[ModelRequest] = ()
        self._left = 0  # parts that are not answered yet

    def start(
        self,
        service: EngineService,
        model: ServedModel,
        head: RequestHead,
        requests: Sequence[InferRequest],
    ) -> None:
        """Pass all requests to the engine."""
        self._left = len(requests)
        self._parts = parts = [
            ModelRequest(service, model, self._connection, self, index)
            for index in range(len(requests))
        ]
        if len(requests) > 1:
            tensors = [tensor for each in requests for tensor in each.inputs.values()]
            size = sum([len(tensor.data) for tensor in tensors])
            group = RequestGroup(next(_group_numbers), len(requests), size)
            for request in requests:
                request.group = group
        for part, request in zip(parts, requests, strict=True):
            if not self._left:  # an earlier one was refused
                return
            request.fields.id = self._request_id
            part.start(head, request)

    def on_part(self, index: int, response: InferResponse | None, *, final: bool) -> bool:
        """Take a response; returns whether the part needs no more of them."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """End the request with an error."""
        self.abandon()
        respond_error(self._connection, as_openai_error(error), self._request_id)

    def abandon(self) -> None:
        """Cancel all parts."""
        parts, self._parts = self._parts, ()  # they refer to this object
        self._left = 0
        for part in parts:
            part.abandon()

    def pause(self) -> None:
        """Pause the model, because the client reads too slowly."""
        for part in self._parts:
            part.pause()

    def resume(self) -> None:
        """Resume the model."""
        for part in self._parts:
            part.resume()


class GenerationExchange(PartsExchange):
    """Reads the answers to all choices; `model` is its name as in the request."""

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
        self._prepare()

    def _prepare(self) -> None:
        """Make what collects or sends the choices."""
        raise NotImplementedError

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

    def _prepare(self) -> None:
        self._gathered = [Gathered([prefix]) for prefix in self._generation.prefixes]

    def _take(self, index: int, delta: Delta) -> None:
        self._gathered[index].add(delta)

    def _end(self) -> None:
        body = encode_answer(self._answer, self._gathered, self._usage())
        self._connection.respond(200, (body,), JSON_TYPE, id_header(self._request_id))


class EventsAnswer(GenerationExchange):
    """Sends what is new as events at once; before the first one, an error has its own status."""

    __slots__ = ("_events", "_has_begun")

    def _prepare(self) -> None:
        self._has_begun = False
        has_usage = self._generation.includes_usage
        self._events = [
            ChoiceEvents(self._answer, index, has_usage=has_usage)
            for index in range(len(self._generation.requests))
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


class EmbeddingsExchange(PartsExchange):
    """Responds with all embeddings, which are in one `output`, when the last of them is there.

    `bodies` writes large answers outside of the event loop.
    """

    __slots__ = ("_bodies", "_is_base64", "_model", "_output", "_row_counts", "_rows", "_tokens")

    def __init__(
        self,
        connection: HttpConnection,
        request_id: str,
        model: str,
        output: str,
        job: EmbeddingJob,
        bodies: Bodies,
    ) -> None:
        super().__init__(connection, request_id)
        self._model = model
        self._output = output
        self._is_base64 = job.is_base64
        self._row_counts = job.row_counts
        self._bodies = bodies
        self._rows: list[Rows | None] = [None] * len(job.requests)
        self._tokens = 0

    def on_part(self, index: int, response: InferResponse | None, *, final: bool) -> bool:
        """Take the response to one of the requests."""
        if response is not None and self._rows[index] is None:
            self._rows[index] = read_rows(response, self._output, self._row_counts[index])
            self._tokens += prompt_tokens(response)
        if not final:
            return False
        if self._rows[index] is None:
            raise InternalError("expected a response with embeddings from the model, got none")
        self._left -= 1
        if not self._left:
            self._end()
            self.abandon()
        return True

    def _end(self) -> None:
        rows = [each for each in self._rows if each is not None]
        write = partial(
            encode_embeddings, self._model, rows, self._tokens, is_base64=self._is_base64
        )
        if sum(each.nbytes for each in rows) > SMALL_BYTES:
            self._bodies.write_in_thread(write, self._respond, self.fail)
        else:
            self._respond(write())

    def _respond(self, body: bytes) -> None:
        self._connection.respond(200, (body,), JSON_TYPE, id_header(self._request_id))
