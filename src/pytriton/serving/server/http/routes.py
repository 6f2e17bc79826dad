# SPDX-License-Identifier: Apache-2.0
"""Finds the endpoint of a path in a table; whole segments are compared."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import httptools

from pytriton.serving.server.access.decisions import Scope
from pytriton.serving.server.api.authorization import RECORDING
from pytriton.serving.server.api.refusals import Refusal

MAX_CACHED_TARGETS = 1024
MAX_CACHED_TARGET_BYTES = 512


class HttpEndpoint(NamedTuple):
    """A handler's name, its group for authorisation, and its HTTP methods."""

    handler: str
    api: str
    methods: frozenset[bytes]
    scope: Scope = Scope.ALL  # of paths without a model: how rights to models apply to them

    @property
    def allow(self) -> bytes:
        """The Allow header line with these methods."""
        return b"Allow: %b\r\n" % b", ".join(sorted(self.methods))

    @property
    def not_allowed(self) -> Refusal:
        """The refusal of another method."""
        return Refusal(405, "Method Not Allowed", self.allow)


class Route(NamedTuple):
    """The endpoint of a request, and the names in its path."""

    endpoint: HttpEndpoint
    model: str = ""
    version: str = ""
    repository: str = ""
    region: str = ""

    @property
    def subject(self) -> str | Scope:
        """What a right has to cover: the model in the path, or what stands for it."""
        return self.model or self.endpoint.scope


# By their handlers: the others have a few settings in their bodies, if anything.
INFERENCES = frozenset({"infer", "generate", "generate_stream"})
WITH_LARGE_BODIES = INFERENCES | {"repository_load"}
_GET = frozenset({b"GET", b"HEAD"})
_POST = frozenset({b"POST"})

# By the segment after a model's name and its optional version.
_MODEL_ENDPOINTS: dict[str, HttpEndpoint] = {
    "": HttpEndpoint("model_metadata", "metadata", _GET),
    "ready": HttpEndpoint("model_ready", "health", _GET),
    "config": HttpEndpoint("model_config", "model-config", _GET),
    "stats": HttpEndpoint("model_statistics", "statistics", _GET),
    "infer": HttpEndpoint("infer", "inference", _POST),
    "generate": HttpEndpoint("generate", "inference", _POST),
    "generate_stream": HttpEndpoint("generate_stream", "inference", _POST),
}

_TRACE_SETTING = HttpEndpoint("trace_setting", "trace", _GET | _POST)
_TRACE_PATH = ("trace", "setting")

_SHARED_MEMORY_METHODS = {"status": _GET, "register": _POST, "unregister": _POST}
# By the first two segments, then by the last one.
_SHARED_MEMORIES: dict[tuple[str, ...], dict[str, HttpEndpoint]] = {
    ("v2", f"{kind}sharedmemory"): {
        action: HttpEndpoint(f"{kind}_memory_{action}", "shared-memory", methods, Scope.NONE)
        for action, methods in _SHARED_MEMORY_METHODS.items()
    }
    for kind in ("system", "cuda")
}

_INDEX = HttpEndpoint("repository_index", "model-repository", _POST, Scope.FILTERED)
_REPOSITORY_MODEL_ENDPOINTS: dict[str, HttpEndpoint] = {
    "load": HttpEndpoint("repository_load", "model-repository", _POST),
    "unload": HttpEndpoint("repository_unload", "model-repository", _POST),
}

_FIXED: dict[tuple[str, ...], Route] = {
    ("v2",): Route(HttpEndpoint("server_metadata", "metadata", _GET, Scope.NONE)),
    ("v2", "health", "live"): Route(HttpEndpoint("live", "health", _GET, Scope.NONE)),
    ("v2", "health", "ready"): Route(HttpEndpoint("ready", "health", _GET, Scope.NONE)),
    ("v2", "models", "stats"): Route(
        HttpEndpoint("all_statistics", "statistics", _GET, Scope.FILTERED)
    ),
    ("v2", "repository", "index"): Route(_INDEX),
    ("v2", *_TRACE_PATH): Route(_TRACE_SETTING),
    # Ours; `Authorization` refuses them unless the server has a token.
    ("v2", RECORDING): Route(HttpEndpoint("recording", RECORDING, _GET | _POST)),
    ("v2", RECORDING, "fetch"): Route(HttpEndpoint("recording_fetch", RECORDING, _POST)),
    ("v2", RECORDING, "stop"): Route(HttpEndpoint("recording_stop", RECORDING, _POST)),
    ("v2", "logging"): Route(HttpEndpoint("logging", "logging", _GET | _POST, Scope.NONE)),
}


def resolve(target: bytes) -> Route | None:
    """Returns the route of a request target; None if no path matches.

    The query is ignored, names are percent-decoded segment by segment, and paths are not
    normalised: `//v2` and `/v2/.` match no route, so requests cannot bypass the authorisation of a
    path.
    """
    path = request_path(target)
    if path is None:
        return None
    segments = tuple(
        unquote_to_bytes(segment).decode("utf-8", "surrogateescape")
        for segment in path.split(b"/")[1:]
    )
    if segments in _FIXED:
        return _FIXED[segments]
    if segments[:2] == ("v2", "repository"):
        return _resolve_repository(segments[2:])
    if segments[:2] in _SHARED_MEMORIES:
        return _resolve_shared_memory(_SHARED_MEMORIES[segments[:2]], segments[2:])
    if segments[:2] != ("v2", "models") or len(segments) < 3 or not segments[2]:
        return None
    return _resolve_model(segments[2], segments[3:])


def request_path(target: bytes) -> bytes | None:
    """Returns the path of a request target as it was sent; None if it is malformed."""
    if not target.startswith(b"/"):
        try:
            target = httptools.parse_url(target).path or b""
        except httptools.HttpParserInvalidURLError:
            return None
    return target.partition(b"?")[0]


def first_segment(target: bytes) -> bytes:
    """Returns the first segment of a request target's path as it was sent; empty if it has none."""
    path = request_path(target) or b""
    return path.split(b"/", 2)[1] if path.startswith(b"/") else b""


def _resolve_model(model: str, rest: tuple[str, ...]) -> Route | None:
    if rest == _TRACE_PATH:  # the settings apply to all versions
        return Route(_TRACE_SETTING, model)
    version = ""
    if len(rest) >= 2 and rest[0] == "versions":
        version = rest[1]
        if not (version.isascii() and version.isdigit()):
            return None
        rest = rest[2:]
    if len(rest) > 1 or rest == ("",):
        return None
    endpoint = _MODEL_ENDPOINTS.get(rest[0] if rest else "")
    return None if endpoint is None else Route(endpoint, model, version)


def _resolve_shared_memory(
    endpoints: dict[str, HttpEndpoint], rest: tuple[str, ...]
) -> Route | None:
    """Resolve `[region/<name>/]<action>`."""
    region = ""
    if len(rest) == 3 and rest[0] == "region" and rest[1]:
        region, rest = rest[1], rest[2:]
    endpoint = endpoints.get(rest[0]) if len(rest) == 1 else None
    return None if endpoint is None else Route(endpoint, region=region)


def _resolve_repository(rest: tuple[str, ...]) -> Route | None:
    """Resolve `[repository/]models/<model>/<action>` or `repository/index`."""
    repository = ""
    if len(rest) in (2, 4) and rest[0]:
        repository, rest = rest[0], rest[1:]
    if repository and rest == ("index",):
        return Route(_INDEX, repository=repository)
    if len(rest) != 3 or rest[0] != "models" or not rest[1]:
        return None
    endpoint = _REPOSITORY_MODEL_ENDPOINTS.get(rest[2])
    return None if endpoint is None else Route(endpoint, rest[1], repository=repository)


class Router:
    """`resolve` with a cache, because clients repeat the same few targets."""

    def __init__(self) -> None:
        self._cache: dict[bytes, Route | None] = {}

    def resolve(self, target: bytes) -> Route | None:
        try:
            return self._cache[target]
        except KeyError:
            route = resolve(target)
            if len(target) <= MAX_CACHED_TARGET_BYTES:
                if len(self._cache) >= MAX_CACHED_TARGETS:
                    self._cache.clear()
                self._cache[target] = route
            return route
