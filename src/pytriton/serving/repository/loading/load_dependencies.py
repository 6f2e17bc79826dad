# SPDX-License-Identifier: Apache-2.0
"""Tracks which models wait, during their load, for the load of others, and refuses cycles."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from pytriton.base.errors import InvalidArgumentError


class LoadDependencies:
    """A graph of models. Loads of one model run one after the other, so a cycle would not end.

    Args:
        identifiers: Returns all models that a load by name may load; None: the one of that name.
    """

    def __init__(self, identifiers: Callable[[str], Sequence[str]] | None = None) -> None:
        self._identifiers = identifiers
        self._waits: dict[str, Counter[str]] = {}  # several instances may load the same model

    @contextlib.contextmanager
    def add(self, name: str, wanted: str) -> Iterator[None]:
        """Mark, while the context is entered, that the load of `name` waits for that of `wanted`.

        Raises:
            InvalidArgumentError: `wanted` waits for `name`, or is the same model.
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

    @contextlib.contextmanager
    def add_named(self, identifier: str, wanted: str) -> Iterator[None]:
        """Like `add`, for all models that a load of the name `wanted` may load."""
        with contextlib.ExitStack() as stack:
            for each in [wanted] if self._identifiers is None else self._identifiers(wanted):
                stack.enter_context(self.add(identifier, each))
            yield

    def __len__(self) -> int:
        return sum(wants.total() for wants in self._waits.values())

    def __repr__(self) -> str:
        return f"<LoadDependencies {len(self)} loads>"

    def _path(self, start: str, end: str) -> list[str]:
        """Returns the models on the path from `start` to `end`, both included; empty if none."""
        paths = {start: [start]}
        pending = [start]
        while pending and end not in paths:
            name = pending.pop()
            for wanted in +self._waits.get(name, Counter()):
                if wanted not in paths:
                    paths[wanted] = [*paths[name], wanted]
                    pending.append(wanted)
        return paths.get(end, [])
