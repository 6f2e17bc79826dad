# SPDX-License-Identifier: Apache-2.0
"""Raw HTTP/1.1 exchanges: exact bytes out, parsed answers back, nothing tidied up between."""

from __future__ import annotations

import dataclasses
import socket
from typing import TYPE_CHECKING

from tests.e2e.waiting import DEADLINE_S

if TYPE_CHECKING:
    from io import BufferedReader

ACCESS_TOKEN = "compared"  # opens what bound models restrict; the real Triton ignores it


@dataclasses.dataclass
class Answer:
    """One HTTP answer; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def request_bytes(
    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> bytes:
    """An HTTP/1.1 request with a Content-Length, unless the headers frame the body themselves."""
    lines = {"Host": "localhost", "triton-access-token": ACCESS_TOKEN, **(headers or {})}
    if "Transfer-Encoding" not in lines and (body or method == "POST"):
        lines.setdefault("Content-Length", str(len(body)))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def chunked(body: bytes, size: int) -> bytes:
    """`body` in chunks of `size` bytes, as Transfer-Encoding: chunked writes them."""
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def exchange(port: int, request: bytes, answers: int = 1) -> list[Answer]:
    """Send `request` to a local server and read as many final answers as were asked for."""
    is_head = request.startswith(b"HEAD ")
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as stream:
            return [_read_answer(stream, is_head=is_head) for _ in range(answers)]


def _read_answer(stream: BufferedReader, *, is_head: bool) -> Answer:
    status_line = stream.readline()
    if not status_line:
        raise ConnectionError("the server closed the connection without an answer")
    status = int(status_line.split()[1])
    headers: dict[str, str] = {}
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if status == 100:
        return _read_answer(stream, is_head=is_head)
    body = b"" if is_head else _read_body(stream, headers)
    return Answer(status, headers, body)


def _read_body(stream: BufferedReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return b"".join(_read_chunks(stream))
    return stream.read(int(headers.get("content-length", "0")))


def _read_chunks(stream: BufferedReader) -> list[bytes]:
    chunks = []
    while size := int(stream.readline().split(b";")[0], 16):
        chunks.append(stream.read(size))
        stream.readline()
    stream.readline()
    return chunks
