# SPDX-License-Identifier: Apache-2.0
"""Answers embedding requests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError
from pytriton.protocol.openai.answers import prompt_tokens
from pytriton.protocol.openai.embeddings import encode_embeddings, read_rows
from pytriton.serving.server.api.background import SMALL_BYTES
from pytriton.serving.server.http.connection import JSON_TYPE
from pytriton.serving.server.openai.parts import PartsExchange
from pytriton.serving.server.openai.responses import id_header

if TYPE_CHECKING:
    from pytriton.base.messages import InferResponse
    from pytriton.protocol.openai.embeddings import EmbeddingJob, Rows
    from pytriton.serving.server.http.bodies import Bodies
    from pytriton.serving.server.http.connection import HttpConnection


class EmbeddingsExchange(PartsExchange):
    """Responds with all embeddings when the last of them is there.

    Args:
        connection: The connection of the client.
        request_id: The id of the request.
        model: The name of the model as in the request.
        output: The output of the model with the embeddings.
        job: What the client asks for.
        bodies: Writes large answers outside of the event loop.
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
