# SPDX-License-Identifier: Apache-2.0
"""Modules that a process imports only if it uses them.

A lazy import is written as an import for type checkers and the module's stand-in beside it:

    if TYPE_CHECKING:
        from pytriton.serving.server.page import api
    else:
        api = LazyModule("pytriton.serving.server.page.api")

`tests/source_rules.py` checks that both name the same module, and its direction.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator
from typing import Any


class LazyModule:
    """Stands for a module, which is imported when one of its attributes is first used.

    An attribute takes a microsecond more than one of the module itself.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks all that a plugin has for some of these
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)

    def __repr__(self) -> str:
        return f"<LazyModule {self._name}>"


@contextlib.contextmanager
def no_garbage_search() -> Iterator[None]:
    """Import modules without a search for garbage among them, during the imports or later.

    Modules are no garbage, and to look for some takes a tenth of a server's start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
