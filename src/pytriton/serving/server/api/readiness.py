# SPDX-License-Identifier: Apache-2.0
"""Finds out for front ends whether the server or a model is ready.

If a model has its own readiness check, the result is a coroutine; otherwise it is known at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from pytriton.serving.engine.model_state import UNLOADED, ModelState

if TYPE_CHECKING:
    from pytriton.serving.engine.control import IndexEntry, ModelControl
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.served_model import ServedModel

# Limits for the text about models that are not ready; the index has the whole text.
MAX_PROBLEMS = 20
MAX_REASON_CHARS = 500

Problem = str | Coroutine[Any, Any, str]  # known now, or to be awaited
ReadyResult = bool | Coroutine[Any, Any, bool]  # known now, or to be awaited


class Readiness:
    """Combines the readiness of the engine, of the model control, and of models' own checks."""

    def __init__(self, engine: Engine, control: ModelControl, *, is_strict: bool) -> None:
        self._engine = engine
        self._control = control
        self._is_strict = is_strict  # all models have to be ready

    def is_serving(self) -> bool:
        """Returns whether the server is ready, without the readiness checks of models."""
        return self._engine.is_ready() and (not self._is_strict or self._control.is_ready())

    def server(self) -> ReadyResult:
        if not self.is_serving():
            return False
        if not self._is_strict:
            return True
        models = self._models_with_checks()
        return _are_all_ready(models) if models else True

    def server_problem(self) -> Problem:
        """Returns why the server is not ready; an empty text if it is ready."""
        if not self.is_serving():
            return self._known_problem()
        models = self._models_with_checks() if self._is_strict else []
        return _unready_text(models) if models else ""

    def _models_with_checks(self) -> list[ServedModel]:
        return [each for each in self._engine.models() if each.has_ready_check and each.is_ready]

    def _known_problem(self) -> str:
        problems = [_entry_problem(each) for each in self._control.index() if _is_problem(each)]
        problems += [
            f"{_named(each)} is short of instances"
            for each in self._engine.models()
            if each.state is ModelState.READY and not each.is_ready
        ]
        more = len(problems) - MAX_PROBLEMS
        if more > 0:
            problems[MAX_PROBLEMS:] = [f"and {more} more"]
        if not problems and self._engine.awaits_models:
            return "the first models are not served yet"
        return "; ".join(problems) or "the server is about to exit"

    def model(self, name: str, version: str) -> ReadyResult:
        """Returns whether a model is ready; an unknown one is not.

        Raises:
            InvalidArgumentError: The version is not a number.
        """
        if not self._engine.is_model_ready(name, version):
            return False
        model = self._engine.lookup(name, version)
        return _are_all_ready([model]) if model.has_ready_check else True


def _named(model: ServedModel) -> str:
    return f"model '{model.spec.name}' version {model.spec.version}"


def _is_problem(entry: IndexEntry) -> bool:
    """Returns whether a model is not ready, unless it was unloaded on purpose."""
    is_unloaded = entry.state == ModelState.UNLOADING.value or entry.reason == UNLOADED
    return bool(entry.state) and entry.state != ModelState.READY.value and not is_unloaded


def _entry_problem(entry: IndexEntry) -> str:
    version = f" version {entry.version}" if entry.version else ""
    reason = entry.reason.partition("\n")[0][:MAX_REASON_CHARS]
    text = f"model '{entry.name}'{version} is at {entry.state} state"
    return f"{text}: {reason}" if reason else text


async def _unready_text(models: list[ServedModel]) -> str:
    results = await asyncio.gather(*(model.check_ready() for model in models))
    unready = [_named(model) for model, result in zip(models, results, strict=True) if not result]
    return "; ".join(f"{name} reports that it is not ready" for name in unready)


async def _are_all_ready(models: list[ServedModel]) -> bool:
    return all(await asyncio.gather(*(model.check_ready() for model in models)))
