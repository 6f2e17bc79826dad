# SPDX-License-Identifier: Apache-2.0
"""The requests of a stream: each is the engine's sink for its responses, or travels as a column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError
from pytriton.protocol.kserve_pb import parse_message
from pytriton.protocol.kserve_pb_response import (
    encode_empty_final,
    encode_infer_response,
    encode_stream_response,
)
from pytriton.serving.server.shared_memory.region_request import RegionRequest

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer
    from pytriton.base.errors import ServerError
    from pytriton.base.messages import InferResponse
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.kserve_pb import BuiltRequest
    from pytriton.protocol.kserve_pb_parsed import ParsedMessage
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.server.api.gatherer import GatheredChunk, Gatherer
    from pytriton.serving.server.grpc.stream import StreamInferCall


class StreamedRequest:
    """One request of a stream; the engine's sink for its responses."""

    __slots__ = (
        "_began_ns",
        "_call",
        "_class_counts",
        "_inference",
        "_spec",
        "_wants_empty_final",
        "answer",
        "is_decoupled",
        "parsed",
    )

    def __init__(self, call: StreamInferCall, parsed: ParsedMessage, began_ns: int = 0) -> None:
        self.parsed = parsed
        self.is_decoupled: bool | None = None  # None until the model is known
        self.answer: list[Buffer] | None = None  # a coupled model's response that is not yet sent
        self._call = call
        self._began_ns = began_ns  # when its stream began to wait for it, if that is known
        # None until the engine has the request, or its inputs are being read.
        self._inference: Inference | RegionRequest | None = None
        self._class_counts: dict[str, int] | None = None
        self._wants_empty_final = False

    def start(self, built: BuiltRequest, spec: ModelSpec, *, is_paused: bool) -> None:
        service, head = self._call.service, self._call.head
        self._spec = spec
        self._class_counts = built.class_counts
        self._wants_empty_final = built.wants_empty_final
        inference = service.submit(built, spec, head.metadata, self, self._began_ns)
        self._inference = inference
        if built.request.uses_regions and isinstance(inference, RegionRequest):
            self._call.wait_until_submitted(inference)
        if is_paused:
            self.pause()

    def cancel(self) -> None:
        if self._inference is not None:
            self._inference.cancel()

    def pause(self) -> None:
        """Pause the responses of a decoupled model."""
        if self._inference is not None and self.is_decoupled:
            self._inference.pause()

    def resume(self) -> None:
        """Resume the responses of a decoupled model."""
        if self._inference is not None and self.is_decoupled:
            self._inference.resume()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        call, spec = self._call, self._spec
        if not call.is_waiting_for(self):
            return
        parts = None
        if response is not None:
            encoded = encode_infer_response(
                response,
                self._class_counts,
                is_batched=spec.max_batch_size > 0,
                labels=spec.labels,
            )
            parts = encode_stream_response(encoded, is_final=final)
        elif not self.is_decoupled:
            call.fail_request(self, InternalError("expected a single response, got 0"))
            return
        elif self._wants_empty_final:
            parsed = self.parsed
            parts = encode_empty_final(parsed.model_name, parsed.model_version, parsed.id)
        call.deliver(self, parts, final=final)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        if self._call.is_waiting_for(self):
            self._call.fail_request(self, error, final=final)

    def on_refused(self, error: ServerError) -> None:
        """Send the error of a request that the engine refused."""
        if self._call.is_waiting_for(self):
            self._call.refuse_request(self, error)


class StreamedMember(StreamedRequest):
    """A request that travels as a column."""

    __slots__ = ("_gatherer", "_message", "call", "chunk", "id", "index")

    def __init__(
        self, call: StreamInferCall, message: bytes, request_id: bytes, gatherer: Gatherer
    ) -> None:
        # Only what such a request needs while nothing goes wrong.
        self.call = call
        self.id = request_id
        self.is_decoupled = False
        self.answer = None
        self.chunk: GatheredChunk | None = None
        self.index: int
        self._inference = None
        self._gatherer = gatherer
        self._message = message

    def become_ordinary(self, spec: ModelSpec) -> None:
        """Get ready for an answer that is not in columns."""
        self.parsed, _ = parse_message(self._message)
        self._call = self.call
        self._spec = spec
        self._class_counts = None
        self._wants_empty_final = False

    def cancel(self) -> None:
        if self.chunk is not None:
            self._gatherer.cancel(self.chunk, self.index)
