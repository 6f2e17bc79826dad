# SPDX-License-Identifier: Apache-2.0
"""The routes of SageMaker: for its health check, for inferences, and for models that it manages."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from pytriton.serving.server.cloud.api import (
    NOT_FOUND,
    HttpTarget,
    OwnTarget,
    binary_type,
    infer_target,
)
from pytriton.serving.server.cloud.sagemaker_models import OUT_OF_MEMORY, is_out_of_memory
from pytriton.serving.server.http.connection import JSON_TYPE, HttpConnection
from pytriton.serving.server.http.routes import HttpEndpoint, Route, request_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.serving.server.cloud.api import Translation
    from pytriton.serving.server.http.reader import RequestHead
    from pytriton.serving.server.options.endpoints import SageMakerOptions

BINARY_TYPE = binary_type(b"sagemaker")

_RESPONSE_TYPE = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
_MODELS = b"/models/"
_MODEL = HttpEndpoint("model", "model-repository", frozenset({b"GET", b"HEAD", b"DELETE"}))
_ALL_MODELS = OwnTarget(
    Route(HttpEndpoint("models", "model-repository", frozenset({b"GET", b"HEAD", b"POST"})))
)
_HEADER_LENGTH = b"Inference-Header-Content-Length: "


class SageMakerRoutes:
    """The routes of SageMaker's contract with a container."""

    is_fixed = True

    def __init__(self, options: SageMakerOptions) -> None:
        self._ping = f"/v2/health/{options.ping_mode}".encode()
        self._invocations = infer_target(options.default_model, options.inference_type)
        self._inference_type = options.inference_type.encode()

    def translate(self, head: RequestHead) -> Translation:
        """Returns what a request asks for."""
        path = request_path(head.target)
        if path == b"/ping":
            return HttpTarget(head.method, self._ping)
        if path == b"/invocations":
            return HttpTarget(head.method, self._invocations)
        if path is not None and (path + b"/").startswith(_MODELS):
            return self._of_models(head, *path[len(_MODELS) :].partition(b"/"))
        return NOT_FOUND

    def _of_models(
        self, head: RequestHead, name: bytes, slash: bytes, action: bytes
    ) -> Translation:
        if not (name or slash):
            return _ALL_MODELS
        if name and not slash:
            return OwnTarget(Route(_MODEL, unquote(name, errors="surrogateescape")))
        if name and action == b"invoke":
            # The name is SageMaker's. What its client wrote, which a header has, is for the log.
            return HttpTarget(head.method, b"/v2/models/%b/%b" % (name, self._inference_type))
        return NOT_FOUND


class SageMakerConnection(HttpConnection):
    """A connection of SageMaker, which passes no headers to clients but the Content-Type."""

    def respond(
        self,
        status: int,
        parts: Sequence[Buffer] = (),
        content_type: bytes = JSON_TYPE,
        headers: bytes = b"",
    ) -> None:
        """See `HttpConnection`; the length of the JSON before binary tensors is in the type."""
        if headers.startswith(_HEADER_LENGTH):
            line, _, headers = headers.partition(b"\r\n")
            content_type = _RESPONSE_TYPE + line[len(_HEADER_LENGTH) :]
        super().respond(status, parts, content_type, headers)

    def respond_error(self, status: int, message: str, headers: bytes = b"") -> None:
        """See `HttpConnection`; a model that SageMaker manages may tell that memory is short."""
        request = self._current
        if request is not None and request.head.target.startswith(_MODELS):
            status = OUT_OF_MEMORY if is_out_of_memory(message) else status
        super().respond_error(status, message, headers)
