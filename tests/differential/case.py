# SPDX-License-Identifier: Apache-2.0
"""One compared request, and what is kept of an answer to compare."""

from __future__ import annotations

import dataclasses
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

from tests.differential.exchange import Answer, request_bytes

COMPARED_HEADERS = ("inference-header-content-length", "content-encoding", "accept-encoding")

NO_CLASSES_OF_STRINGS = "class result not available for output due to unsupported type 'BYTES'"
BECAUSE_OF_DIVISION = "the real one divides by zero: it says this on arm64, and dies on x86-64"

Observation = dict[str, Any]  # what `observe` makes of an answer; plain JSON, stored as it is


@dataclasses.dataclass(frozen=True)
class Case:
    """A request to both servers.

    Where ours deliberately answers otherwise, `ours` says what and `because` says why. What the
    real server does not survive, or never answers, is `only_ours`: it is not sent there.
    """

    name: str
    request: bytes
    answers: int = 1
    view: Callable[[Any], Any] | None = None  # the comparable part of a JSON body
    ours: tuple[Observation, ...] = ()
    because: str = ""
    only_ours: bool = False

    def __post_init__(self) -> None:
        if bool(self.ours) != bool(self.because):
            raise ValueError(f"{self.name}: a difference needs both an answer and a reason")
        if self.only_ours and not self.ours:
            raise ValueError(f"{self.name}: where the real server does not answer, ours is told")


def observe(answer: Answer, view: Callable[[Any], Any] | None) -> Observation:
    """The comparable part of an answer."""
    seen: Observation = {"status": answer.status}
    for name in COMPARED_HEADERS:
        if name in answer.headers:
            seen[name] = answer.headers[name]
    body = _decompress(answer)
    if answer.status == 200 and body:
        seen["type"] = answer.headers.get("content-type", "")
    length = int(answer.headers.get("inference-header-content-length", len(body)))
    if len(body) > length:
        seen["binary"] = body[length:].hex()
        # Its length depends on the writer's spaces, so only its presence is compared.
        seen["inference-header-content-length"] = "present"
    seen["body"] = _parse(body[:length], view)
    return seen


def _decompress(answer: Answer) -> bytes:
    encoding = answer.headers.get("content-encoding", "")
    if encoding == "gzip":
        return gzip.decompress(answer.body)
    return zlib.decompress(answer.body) if encoding == "deflate" else answer.body


def _parse(body: bytes, view: Callable[[Any], Any] | None) -> Any:
    text = body.decode("utf-8", "surrogateescape")
    if text.startswith("data: "):
        events = text.removesuffix("\n\n").split("\n\n")
        return [_parse(event.removeprefix("data: ").encode(), view) for event in events]
    try:
        document = json.loads(text, parse_constant=str)  # NaN is not equal to itself
    except json.JSONDecodeError:
        return text
    if view is None:
        return document
    try:
        return view(document)
    except (KeyError, TypeError):  # another answer than the view is of: compared whole
        return document


def get(name: str, path: str, **options: Any) -> Case:
    """A GET without a body."""
    return Case(name, request_bytes("GET", path), **options)


def post(
    name: str,
    path: str,
    body: object,
    headers: dict[str, str] | None = None,
    **options: Any,
) -> Case:
    """A POST of bytes, of text, or of anything else as JSON."""
    if isinstance(body, str):
        body = body.encode()
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return Case(name, request_bytes("POST", path, body, headers), **options)


def infer(name: str, model: str, body: object, **options: Any) -> Case:
    """An infer request."""
    return post(name, f"/v2/models/{model}/infer", body, **options)


def binary(name: str, model: str, header: object, blob: bytes, **options: Any) -> Case:
    """An infer request with tensors behind its JSON."""
    text = json.dumps(header).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    return infer(name, model, text + blob, headers=headers, **options)


def error(status: int, text: str) -> tuple[Observation]:
    """The answer with an error, for `Case.ours`."""
    return ({"status": status, "body": {"error": text}},)


def tensor(name: str, datatype: str, shape: list[Any], data: Any, **members: Any) -> dict[str, Any]:
    """An element of `inputs`."""
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **members}
