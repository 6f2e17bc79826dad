# SPDX-License-Identifier: Apache-2.0
"""Which requests are traced, as the settings of OpenTelemetry say; the spans are made elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADER = b"traceparent"
_DEFAULT_RATE = 1000
_UNLIMITED = -1


class TraceSampling:
    """Picks the requests to trace: all that a client traces, and every so many of the others."""

    def __init__(self, rate: int, count: int) -> None:
        self._rate = rate  # 0: only those of clients that trace
        self._left = count
        self._seen = 0

    @classmethod
    def from_settings(cls, settings: Sequence[str]) -> TraceSampling | None:
        """Read `mode=opentelemetry` and what goes with it; None where nothing is to be traced."""
        values = dict(setting.partition("=")[::2] for setting in settings)
        if values.get("mode") != "opentelemetry" or values.get("level", "").upper() == "OFF":
            return None
        return cls(
            _integer("rate", values.get("rate", str(_DEFAULT_RATE))),
            _integer("count", values.get("count", str(_UNLIMITED))),
        )

    def traceparent(self, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """The span that a request is traced under; empty for none, None where it is not traced."""
        for name, value in headers:
            if name.lower() == _HEADER:
                return value.decode("latin-1")
        return "" if self._is_next() else None

    def _is_next(self) -> bool:
        self._seen += 1
        if not self._rate or self._seen % self._rate or not self._left:
            return False
        if self._left > 0:
            self._left -= 1
        return True


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(
            f"Expected a number as trace setting '{name}', got '{text}'"
        ) from None
