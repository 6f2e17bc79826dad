# SPDX-License-Identifier: Apache-2.0
"""Which models wait, while they are loaded, for others to be loaded: never in a circle."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from pytriton.errors import InvalidArgumentError


class LoadDependencies:
    """A graph of models; loads of one model run one after the other, so a circle would not end."""

    def __init__(self) -> None:
        self._waits: dict[str, Counter[str]] = {}  # several instances may want the same

    @contextlib.contextmanager
    def add(self, name: str, wanted: str) -> Iterator[None]:
        """A model that is being loaded waits until `wanted` is loaded.

        Raises:
            InvalidArgumentError: That waits for it, or is the model itself.
        """
        path = self._path(wanted, name)
        if path:
            circle = " -> ".join([name, *path])
            raise InvalidArgumentError(
                f"model '{name}' cannot wait for '{wanted}' to be loaded while it is being loaded "
                f"itself, as that waits for its own end: {circle}"
            )
        wants = self._waits.setdefault(name, Counter())
        wants[wanted] += 1
        try:
            yield
        finally:
            wants[wanted] -= 1
            if not +wants:
                del self._waits[name]

    def __len__(self) -> int:
        return sum(wants.total() for wants in self._waits.values())

    def __repr__(self) -> str:
        return f"<LoadDependencies {len(self)} loads>"

    def _path(self, start: str, end: str) -> list[str]:
        """The models from `start` to `end`, both included; empty where none leads there."""
        paths = {start: [start]}
        pending = [start]
        while pending and end not in paths:
            name = pending.pop()
            for wanted in +self._waits.get(name, Counter()):
                if wanted not in paths:
                    paths[wanted] = [*paths[name], wanted]
                    pending.append(wanted)
        return paths.get(end, [])
