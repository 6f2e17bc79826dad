# SPDX-License-Identifier: Apache-2.0
"""Dataclasses that refuse positional arguments with a clear message."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

T = TypeVar("T")


def kwonly_dataclass(cls: type[T]) -> type[T]:
    """Make the constructor of a dataclass take keyword arguments only.

    The class itself is returned, so `isinstance` and `dataclasses.is_dataclass` work as before.
    """
    generated_init = cls.__init__

    @functools.wraps(generated_init)
    def keyword_only_init(self: T, *args: Any, **kwargs: Any) -> None:
        if args:
            message = f"{cls.__name__} initialization can't be used with positional arguments"
            raise TypeError(message)
        generated_init(self, **kwargs)

    # The constructor is replaced on purpose, although its type differs.
    cls.__init__ = keyword_only_init  # type: ignore[assignment, method-assign]
    return cls
