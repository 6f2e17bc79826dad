# SPDX-License-Identifier: Apache-2.0
"""Reads metrics in the text format of Prometheus, and recognises a port that has nothing else."""

from __future__ import annotations

import contextlib
import http.client
import re
from collections.abc import Iterator

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_TIMEOUT_S = 5.0  # to find out what a port has
_DISTANCE = 2  # from the port for HTTP to that of the metrics, unless both are chosen
_DEFAULT_HTTP_PORT = 8000


def series(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yields name, labels and value of each line; lines that are no series are skipped."""
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.match(line)
        if match is None:
            continue
        labels = {
            label: re.sub(r"\\.", lambda each: _ESCAPES.get(each[0], each[0]), value)
            for label, value in _LABEL.findall(match[2] or "")
        }
        try:
            yield match[1], labels, float(match[3])
        except ValueError:
            continue


def metrics_port_hint(host: str, port: int) -> str:
    """Returns a sentence that names the port for HTTP, or nothing if this one has no metrics."""
    status, text = _get(host, port, "/metrics")
    has_metrics = status == http.HTTPStatus.OK and text.startswith(b"# HELP")
    # Servers of others may have both on one port.
    if not has_metrics or _get(host, port, "/v2")[1].startswith(b"{"):
        return ""
    http_port = port - _DISTANCE
    is_found = _get(host, http_port, "/v2/health/live")[0] == http.HTTPStatus.OK
    where = f"{host}:{http_port}" if is_found else f"{_DEFAULT_HTTP_PORT} by default"
    return f"{host}:{port} is the port of the metrics; expected the port for HTTP, {where}"


def _get(host: str, port: int, path: str) -> tuple[int, bytes]:
    if port <= 0:
        return 0, b""
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
