# SPDX-License-Identifier: Apache-2.0
"""What front ends answer when somebody asks whether the server or a model is ready.

Where a model has a word of its own to say, the answer is a coroutine; it costs others nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton.engine.control import ModelControl
    from pytriton.engine.engine import Engine
    from pytriton.engine.served_model import ServedModel

Readable = bool | Coroutine[Any, Any, bool]  # known now, or to be awaited


class Readiness:
    """Joins what the engine knows, what the control of the models knows, and what models say."""

    def __init__(self, engine: Engine, control: ModelControl, *, is_strict: bool) -> None:
        self._engine = engine
        self._control = control
        self._is_strict = is_strict  # all models that should serve have to

    def is_serving(self) -> bool:
        """Whether the server is ready as far as can be said without asking models."""
        return self._engine.is_ready() and (not self._is_strict or self._control.is_ready())

    def server(self) -> Readable:
        """Whether the server is ready."""
        if not self.is_serving():
            return False
        if not self._is_strict:
            return True
        asked = [each for each in self._engine.models() if each.has_ready_check and each.is_ready]
        return _ask_all(asked) if asked else True

    def model(self, name: str, version: str) -> Readable:
        """Whether a model is ready; an unknown one is not.

        Raises:
            InvalidArgumentError: The version is no number.
        """
        if not self._engine.is_model_ready(name, version):
            return False
        model = self._engine.lookup(name, version)
        return _ask_all([model]) if model.has_ready_check else True


async def _ask_all(models: list[ServedModel]) -> bool:
    return all(await asyncio.gather(*(model.check_ready() for model in models)))
