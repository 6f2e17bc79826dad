# SPDX-License-Identifier: Apache-2.0
"""Reading and changing the settings of traces, for both protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytriton.engine.engine import Engine
    from pytriton.server.tracing.settings import TraceSettings


class TraceService:
    """The settings of a server, and of the models that it has."""

    def __init__(self, engine: Engine, settings: TraceSettings) -> None:
        self._engine = engine
        self._settings = settings

    def change(self, model_name: str, changes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Change settings of a model, or of all without a name; the settings after that.

        Raises:
            ServerError: There is no such model, or a value is wrong.
        """
        if model_name and self._engine.find(model_name) is None:
            raise InvalidArgumentError(f"Request for unknown model : {model_name}")
        if changes:
            self._settings.update(changes, model_name)
        return self._settings.view(model_name)
