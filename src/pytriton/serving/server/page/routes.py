# SPDX-License-Identifier: Apache-2.0
"""The paths of the page: its files, its data, and endpoints of the HTTP port that it may use."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from pytriton.serving.server.http.routes import WITH_LARGE_BODIES, resolve

PREFIX = b"/page/"
_FORWARDED = b"/page/api/v2/"
_GET = frozenset({b"GET", b"HEAD"})
# The endpoints of the HTTP port that the page uses; a token is needed for those that do something.
_READ = frozenset({"model_metadata", "model_config", "model_statistics"})
_ACT = frozenset({"infer", "generate", "generate_stream", "repository_load", "repository_unload"})


class PageRoute(NamedTuple):
    """The target of a path of the page."""

    kind: str  # file, data or forwarded
    name: str  # of a file, or of what answers
    api: str = ""  # the group for authorisation; a forwarded request has that of its endpoint
    needs_token: bool = False
    methods: frozenset[bytes] = _GET
    target: bytes = b""  # at the HTTP port

    @property
    def has_large_body(self) -> bool:
        """Whether its requests have tensors or files."""
        return self.kind == "forwarded" and self.name in WITH_LARGE_BODIES

    @property
    def allow(self) -> bytes:
        """The Allow header line with the methods."""
        return b"Allow: %b\r\n" % b", ".join(sorted(self.methods))


_FIXED = {
    b"/": PageRoute("file", "index.html"),
    b"/openapi.json": PageRoute("data", "openapi", "metadata"),
    b"/page/api/server": PageRoute("data", "server"),
    b"/page/api/models": PageRoute("data", "models"),  # decides on each part of its answer
    b"/page/api/now": PageRoute("data", "now"),  # what /metrics tells, too
    b"/page/api/samples": PageRoute("data", "samples"),  # the same, of the last hour
    b"/page/api/cluster": PageRoute("data", "cluster"),  # the same
    # Counts are what /metrics tells, too; what needs the token is left out without it.
    b"/page/api/failures": PageRoute("data", "failures"),
    b"/page/api/failures/inputs": PageRoute(
        "data", "failed_inputs", "logging", needs_token=True, methods=_GET | {b"POST"}
    ),
    b"/page/api/log": PageRoute("data", "log", "logging", needs_token=True),
    b"/page/api/settings": PageRoute("data", "settings", needs_token=True),
}


def owns(path: bytes) -> bool:
    """Returns whether the page answers requests for a path."""
    return path.startswith(PREFIX) or path in _FIXED


def find(path: bytes) -> PageRoute | None:
    """Returns the route of a path that the page owns; None if it leads nowhere."""
    if path in _FIXED:
        return _FIXED[path]
    if path.startswith(_FORWARDED):
        return _forwarded(path[len(b"/page/api") :])
    name = path[len(PREFIX) :]
    return PageRoute("file", unquote_to_bytes(name).decode("utf-8", "replace"))


def _forwarded(target: bytes) -> PageRoute | None:
    found = resolve(target)
    if found is None or not found.model:
        return None
    endpoint = found.endpoint
    if endpoint.handler not in _READ | _ACT:
        return None
    needs_token = endpoint.handler in _ACT
    return PageRoute(
        "forwarded", endpoint.handler, endpoint.api, needs_token, endpoint.methods, target
    )
