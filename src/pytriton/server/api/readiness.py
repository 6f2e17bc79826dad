# SPDX-License-Identifier: Apache-2.0
"""What front ends answer when somebody asks whether the server or a model is ready.

Where a model has a word of its own to say, the answer is a coroutine; it costs others nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from pytriton.engine.model_state import UNLOADED, ModelState

if TYPE_CHECKING:
    from pytriton.engine.control import IndexEntry, ModelControl
    from pytriton.engine.engine import Engine
    from pytriton.engine.served_model import ServedModel

# Of what is said about models that are not ready; the index has all of it.
MAX_PROBLEMS = 20
MAX_REASON_CHARS = 500

Problem = str | Coroutine[Any, Any, str]  # known now, or to be awaited
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
        asked = self._models_to_ask()
        return _ask_all(asked) if asked else True

    def server_problem(self) -> Problem:
        """Why the server is not ready, in words; an empty text where it is."""
        if not self.is_serving():
            return self._known_problem()
        asked = self._models_to_ask() if self._is_strict else []
        return _ask_each(asked) if asked else ""

    def _models_to_ask(self) -> list[ServedModel]:
        return [each for each in self._engine.models() if each.has_ready_check and each.is_ready]

    def _known_problem(self) -> str:
        problems = [_entry_problem(each) for each in self._control.index() if _is_missed(each)]
        problems += [
            f"{_named(each)} is short of instances"
            for each in self._engine.models()
            if each.state is ModelState.READY and not each.is_ready
        ]
        more = len(problems) - MAX_PROBLEMS
        if more > 0:
            problems[MAX_PROBLEMS:] = [f"and {more} more"]
        return "; ".join(problems) or "the server is about to exit"

    def model(self, name: str, version: str) -> Readable:
        """Whether a model is ready; an unknown one is not.

        Raises:
            InvalidArgumentError: The version is no number.
        """
        if not self._engine.is_model_ready(name, version):
            return False
        model = self._engine.lookup(name, version)
        return _ask_all([model]) if model.has_ready_check else True


def _named(model: ServedModel) -> str:
    return f"model '{model.spec.name}' version {model.spec.version}"


def _is_missed(entry: IndexEntry) -> bool:
    """Whether a model should serve and does not; what was unloaded should not."""
    is_withdrawn = entry.state == ModelState.UNLOADING.value or entry.reason == UNLOADED
    return bool(entry.state) and entry.state != ModelState.READY.value and not is_withdrawn


def _entry_problem(entry: IndexEntry) -> str:
    version = f" version {entry.version}" if entry.version else ""
    reason = entry.reason.partition("\n")[0][:MAX_REASON_CHARS]
    text = f"model '{entry.name}'{version} is at {entry.state} state"
    return f"{text}: {reason}" if reason else text


async def _ask_each(models: list[ServedModel]) -> str:
    words = await asyncio.gather(*(model.check_ready() for model in models))
    unready = [_named(model) for model, word in zip(models, words, strict=True) if not word]
    return "; ".join(f"{name} says itself that it is not ready" for name in unready)


async def _ask_all(models: list[ServedModel]) -> bool:
    return all(await asyncio.gather(*(model.check_ready() for model in models)))
