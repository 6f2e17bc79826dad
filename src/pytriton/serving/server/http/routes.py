# SPDX-License-Identifier: Apache-2.0
"""Finds the endpoint of a path, by whole segments: those of inference, and of all operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

import httptools

from pytriton.serving.server.access.decisions import Scope
from pytriton.serving.server.api.refusals import INFERENCE, Refusal
from pytriton.serving.server.operations.operation import POST, HttpPath
from pytriton.serving.server.operations.table import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytriton.serving.server.operations.operation import Operation

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


_INFERENCE = "/v2/models/{model}[/versions/{version}]/"
# By their handlers: the others have a few settings in their bodies, if anything.
INFERENCES = frozenset({"infer", "generate", "generate_stream"})
WITH_LARGE_BODIES = INFERENCES | {each.name for each in OPERATIONS if each.has_files}


class _PathPlace:
    """Where a path may end, or go on with a word or with any name."""

    __slots__ = ("after_name", "endpoint", "name", "words")

    def __init__(self) -> None:
        self.endpoint: HttpEndpoint | None = None
        self.words: dict[str, _PathPlace] = {}
        self.name = ""  # of what is in the path here; empty: only words are
        self.after_name: _PathPlace | None = None

    def grow(self, segment: str) -> _PathPlace:
        """Returns the place after a segment of a template."""
        if not segment.startswith("{"):
            return self.words.setdefault(segment, _PathPlace())
        name = segment.strip("{}")
        assert self.name in ("", name), f"expected one name, got {self.name} and {name}"
        self.name, self.after_name = name, self.after_name or _PathPlace()
        return self.after_name

    def find(self, segments: list[str], at: int, names: dict[str, str]) -> Route | None:
        """Returns the route of a path that goes on so; a word counts before a name."""
        if at == len(segments):
            return None if self.endpoint is None else Route(self.endpoint, **names)
        segment = segments[at]
        word = self.words.get(segment)
        found = None if word is None else word.find(segments, at + 1, names)
        if found is not None or self.after_name is None:
            return found
        may_be = segment.isascii() and segment.isdigit() if self.name == "version" else segment
        if not may_be:
            return None
        return self.after_name.find(segments, at + 1, {**names, self.name: segment})


class RouteTable:
    """Finds the route of a path among those of operations and of inference."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._root = _PathPlace()
        for name in sorted(INFERENCES):
            self._add(HttpPath(_INFERENCE + name), HttpEndpoint(name, INFERENCE, POST))
        for each in operations:
            if each.http is not None:
                endpoint = HttpEndpoint(each.name, each.api, each.http.methods, each.scope)
                for path in each.http.paths:
                    self._add(path, endpoint)

    def _add(self, path: HttpPath, endpoint: HttpEndpoint) -> None:
        for template in (path.plain, path.full):
            place = self._root
            for segment in template.split("/")[1:]:
                place = place.grow(segment)
            place.endpoint = endpoint

    def resolve(self, target: bytes) -> Route | None:
        """Returns the route of a request target; None if no path matches.

        The query is ignored, names are percent-decoded segment by segment, and paths are not
        normalised: `//v2` and `/v2/.` match no route, so requests cannot bypass the authorisation
        of a path.
        """
        path = request_path(target)
        if path is None:
            return None
        segments = [
            unquote_to_bytes(segment).decode("utf-8", "surrogateescape")
            for segment in path.split(b"/")[1:]
        ]
        return self._root.find(segments, 0, {})


resolve = RouteTable(OPERATIONS).resolve


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


class Router:
    """Finds routes with a cache, because clients repeat the same few targets."""

    def __init__(self, find: Callable[[bytes], Route | None] = resolve) -> None:
        self._find = find
        self._cache: dict[bytes, Route | None] = {}

    def resolve(self, target: bytes) -> Route | None:
        try:
            return self._cache[target]
        except KeyError:
            route = self._find(target)
            if len(target) <= MAX_CACHED_TARGET_BYTES:
                if len(self._cache) >= MAX_CACHED_TARGETS:
                    self._cache.clear()
                self._cache[target] = route
            return route
