# SPDX-License-Identifier: Apache-2.0
"""The routes of Vertex AI: one for predictions, one for health, and a header to other endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pytriton.base.errors import InvalidArgumentError
from pytriton.serving.server.cloud.api import (
    NOT_FOUND,
    HttpTarget,
    binary_type,
    infer_target,
)
from pytriton.serving.server.http.routes import HttpEndpoint, Route, request_path, resolve
from pytriton.serving.server.options.endpoints import (
    HEALTH_ROUTE_VARIABLE,
    PREDICT_ROUTE_VARIABLE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.serving.server.cloud.api import Translation
    from pytriton.serving.server.http.request import RequestHead
    from pytriton.serving.server.options.endpoints import VertexAiOptions

BINARY_TYPE = binary_type(b"vertex-ai")
REDIRECT_HEADER = b"x-vertex-ai-triton-redirect"
NOT_ONE_MODEL = (
    "Expect the model repository contains only a single model if default model is not specified"
)

_READY = b"/v2/health/ready"
_METRICS = b"metrics"
# Metrics show what statistics show, so both are in the same restricted group.
_METRICS_ROUTE = Route(HttpEndpoint("metrics", "statistics", frozenset({b"POST"})))
_PREDICT = HttpEndpoint("predict", "inference", frozenset({b"POST"}))


class VertexAiRoutes:
    """The routes that Vertex AI has chosen for a server."""

    def __init__(self, options: VertexAiOptions, ready_models: Callable[[], Sequence[str]]) -> None:
        self._predict = options.predict_route.encode()
        self._health = options.health_route.encode()
        self._default_model = options.default_model
        self._ready_models = ready_models

    @property
    def is_fixed(self) -> bool:
        """Whether equal requests are for the same model for ever."""
        return self._default_model is not None

    def translate(self, head: RequestHead) -> Translation:
        """Returns what a request asks for.

        Raises:
            InvalidArgumentError: There is no default model, and not exactly one model.
        """
        path = request_path(head.target)
        is_predict = path == self._predict
        if path == self._health and not (is_predict and head.method == b"POST"):
            return HttpTarget(head.method, _READY)
        if not is_predict:
            return NOT_FOUND
        redirect = head.headers.get(REDIRECT_HEADER)
        if redirect is not None:
            return _redirected(head, redirect)
        if head.method != b"POST":
            return _PREDICT.not_allowed
        return HttpTarget(head.method, infer_target(self._model()))

    def _model(self) -> str:
        if self._default_model is not None:
            return self._default_model
        names = self._ready_models()
        if len(names) != 1:
            raise InvalidArgumentError(NOT_ONE_MODEL)
        return names[0]


def check_vertex_ai(
    options: VertexAiOptions, ready_models: Sequence[str] | None
) -> VertexAiOptions:
    """Returns the settings with a default model, if the ready models are known already.

    Raises:
        InvalidArgumentError: A route is missing, or the default model is not clear or not there.
    """
    problem, default = "", options.default_model
    if not options.predict_route:
        problem = f"{PREDICT_ROUTE_VARIABLE} is not defined for Vertex AI endpoint"
    elif not options.health_route:
        problem = f"{HEALTH_ROUTE_VARIABLE} is not defined for Vertex AI endpoint"
    elif ready_models is not None:
        if default is None and len(ready_models) == 1:
            default = ready_models[0]
        elif default is None:
            problem = NOT_ONE_MODEL
        elif default not in ready_models:
            problem = f"Expect the default model '{default}' is loaded"
    if problem:
        raise InvalidArgumentError(
            f"failed to start Vertex AI service: Invalid argument - {problem}"
        )
    return msgspec.structs.replace(options, default_model=default)


def _redirected(head: RequestHead, redirect: bytes) -> Translation:
    """Find the endpoint that the header names, without the slash in front.

    Vertex AI only sends POST, so it is used for the endpoints that others ask with GET.
    """
    if head.method != b"POST":
        return _PREDICT.not_allowed
    if redirect == _METRICS:
        return _METRICS_ROUTE
    target = b"/" + redirect
    if not _is_plain(redirect):
        return NOT_FOUND
    route = resolve(target)
    if route is None:
        return NOT_FOUND
    methods = route.endpoint.methods
    has_body = head.content_length > 0 or b"transfer-encoding" in head.headers
    reads = b"POST" not in methods or (b"GET" in methods and not has_body)
    return HttpTarget(b"GET" if reads else b"POST", target)


def _is_plain(redirect: bytes) -> bool:
    """Returns whether a header is a path in `v2` as it is written, with no query and no detour."""
    segments = redirect.split(b"/")
    has_detour = any(segment in (b"", b".", b"..") for segment in segments)
    return segments[0] == b"v2" and not has_detour and not set(redirect) & set(b"?#\\;%")
