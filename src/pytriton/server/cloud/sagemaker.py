# SPDX-License-Identifier: Apache-2.0
"""The routes of SageMaker: for its health check, for inferences, and for models that it manages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.server.cloud.translation import NOT_FOUND, HttpTarget, binary_type, infer_target
from pytriton.server.http.connection import HttpConnection
from pytriton.server.http.routes import request_path
from pytriton.server.http.text import JSON_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.dtypes import Buffer
    from pytriton.server.cloud.translation import Translation
    from pytriton.server.http.reader import RequestHead
    from pytriton.server.options.cloud_options import SageMakerOptions

BINARY_TYPE = binary_type(b"sagemaker")

_RESPONSE_TYPE = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
_HEADER_LENGTH = b"Inference-Header-Content-Length: "


class SageMakerRoutes:
    """The routes of SageMaker's contract with a container."""

    is_fixed = True

    def __init__(self, options: SageMakerOptions) -> None:
        self._ping = f"/v2/health/{options.ping_mode}".encode()
        self._invocations = infer_target(options.default_model, options.inference_type)

    def translate(self, head: RequestHead) -> Translation:
        """Returns what a request asks for."""
        path = request_path(head.target)
        if path == b"/ping":
            return HttpTarget(head.method, self._ping)
        if path == b"/invocations":
            return HttpTarget(head.method, self._invocations)
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
