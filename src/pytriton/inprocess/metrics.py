# SPDX-License-Identifier: Apache-2.0
"""Metrics that a program adds; all servers of the process show them."""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytriton.inprocess.enums import MetricKind
from pytriton.inprocess.errors import InvalidArgumentError, public_errors
from pytriton.serving.repository.services import custom_metrics

_lock = threading.Lock()
_families = custom_metrics.CustomMetrics()
# Releases of freed objects. Finalizers may run while their own thread has the lock.
_unused: collections.deque[Callable[[], object]] = collections.deque()


class MetricFamily:
    """All metrics of one name. It is shown while it or one of its metrics is referenced.

    Args:
        kind: Whether they are counters or gauges.
        name: The name.
        description: Their help text.

    Raises:
        InvalidArgumentError: The name is none of Prometheus.
        AlreadyExistsError: There is such a family of another kind.
    """

    def __init__(self, kind: MetricKind, name: str, description: str) -> None:
        if not isinstance(kind, MetricKind):
            raise InvalidArgumentError(f"kind must be a MetricKind, got {kind!r}")
        self.kind = kind
        self.name = name
        self.description = description
        with public_errors(), shared_families() as families:
            self.shared: custom_metrics.SharedFamily = families.acquire(
                name, description, kind.name
            )
        release = functools.partial(_families.release, self.shared)
        weakref.finalize(self, _unused.append, release).atexit = False


class Metric:
    """One counter or gauge. Objects of the same family and labels share their value.

    Args:
        family: Its family.
        labels: Its labels by name.

    Raises:
        InvalidArgumentError: The name of a label is none of Prometheus.
    """

    def __init__(self, family: MetricFamily, labels: Mapping[str, Any] | None = None) -> None:
        self._family = family
        texts = {name: str(value) for name, value in (labels or {}).items()}
        with public_errors(), shared_families():
            self._shared = family.shared.acquire(texts, None)
        release = functools.partial(family.shared.release, self._shared)
        weakref.finalize(self, _unused.append, release).atexit = False

    @property
    def kind(self) -> MetricKind:
        """Whether it is a counter or a gauge."""
        return self._family.kind

    @property
    def value(self) -> float:
        """Its value."""
        with public_errors(), shared_families():
            return self._shared.value()

    def increment(self, value: float) -> None:
        """Add to it; a counter takes no negative numbers (InvalidArgumentError)."""
        with public_errors(), shared_families():
            self._shared.increment(value)

    def set_value(self, value: float) -> None:
        """Set a gauge; a counter cannot be set (UnsupportedError)."""
        with public_errors(), shared_families():
            self._shared.set(value)


@contextlib.contextmanager
def shared_families() -> Iterator[custom_metrics.CustomMetrics]:
    """Gives all families, which do not change meanwhile."""
    with _lock:
        while _unused:
            _unused.popleft()()
        yield _families
