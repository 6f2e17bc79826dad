# SPDX-License-Identifier: Apache-2.0
"""What all models of the repositories share: settings, engine, states, and the limit on loads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pytriton.base.errors import ServerError, resource_error
from pytriton.base.model_spec import ModelSpec
from pytriton.runtime.executor.worker import InstanceUnavailableError, ResourceLackError
from pytriton.serving.engine.model import Model
from pytriton.serving.repository.loading.held_version import hold
from pytriton.serving.repository.loading.outcomes import LackOfResources
from pytriton.serving.repository.loading.plans import find_loader, load_within
from pytriton.serving.repository.reading.source import ModelSource, make_plan
from pytriton.serving.repository.states import StateTable

if TYPE_CHECKING:
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.repository.loading.ensemble_loader import StepUse
    from pytriton.serving.repository.loading.ensemble_steps import StepFinder
    from pytriton.serving.repository.loading.plans import LoadedVersion, Loaders
    from pytriton.serving.repository.settings import RepositorySettings

logger = logging.getLogger(__name__)

_NO_ROOM = (
    "What was loaded before serves on. A reload starts new instances before it ends the old ones, "
    "so it needs as much room again; unload the model first if there is none"
)


class LoadCoordinator:
    """Loads versions for all models, at most `load_limit` at a time."""

    def __init__(
        self,
        settings: RepositorySettings,
        engine: Engine,
        loaders: Loaders,
        loop: asyncio.AbstractEventLoop,
        finder: StepFinder,
        step_use: StepUse,
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.table = StateTable()
        self.on_progress: Callable[[], None] | None = None  # called when `loading` changed
        self.find_steps = finder.find
        self.steps_released = step_use.released
        self._loaders = loaders
        self._loop = loop
        self._load_slots = asyncio.Semaphore(settings.load_limit)
        self._loading: Counter[str] = Counter()

    @property
    def loading(self) -> list[str]:
        """The names of the models of which a version is being loaded."""
        return sorted(self._loading)

    async def load_version(
        self, source: ModelSource, version: int, *, is_limited: bool, is_reload: bool = False
    ) -> LoadedVersion | str:
        """Load a version; returns it, or why it could not be loaded.

        Args:
            source: The files and the configuration of the model.
            version: The number of the version.
            is_limited: Whether the limit on concurrent loads applies. It must not if a model loads
                another one: the first one counts itself, and might wait for itself to end.
            is_reload: Whether other versions of the model are in service meanwhile.
        """
        # On Ray, a model that waits for room must not keep others from asking for theirs.
        is_limited = is_limited and not source.on_ray
        async with self._load_slots if is_limited else contextlib.nullcontext():
            with self._counted_as_loading(source.identifier):
                started_ns = time.monotonic_ns()
                for attempt in range(self.settings.retry_count + 1):
                    outcome = await self._try_version(source, version, is_reload=is_reload)
                    if not isinstance(outcome, str):
                        statistics = outcome.model.statistics
                        statistics.load_ns = time.monotonic_ns() - started_ns
                        return outcome
                    is_last = attempt == self.settings.retry_count
                    logger.error(
                        "failed to load '%s' version %d: %s%s",
                        source.identifier,
                        version,
                        outcome,
                        "" if is_last else ", trying again",
                    )
                return outcome

    async def _try_version(
        self, source: ModelSource, version: int, *, is_reload: bool
    ) -> LoadedVersion | str:
        logger.info("loading: %s:%d", source.identifier, version)
        try:
            loader = find_loader(self._loaders, source.config)
            plan = await asyncio.to_thread(make_plan, source, version, self.settings)
            loaded = await load_within(plan.load_timeout_s, loader.load(plan))
            return hold(loaded, source.place.holder())
        except Exception as error:  # noqa: BLE001  it becomes the version's reason
            text = source.place.explain(failure_text(error))
            if isinstance(error, ResourceLackError) or resource_error(error) is not None:
                return LackOfResources(text)
            if is_reload and isinstance(error, InstanceUnavailableError):
                text = f"{text.removesuffix('.')}. {_NO_ROOM}"
            return text

    @contextlib.contextmanager
    def _counted_as_loading(self, name: str) -> Iterator[None]:
        self._loading[name] += 1
        self._report()
        try:
            yield
        finally:
            self._loading -= Counter({name: 1})
            self._report()

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress()

    def add_placeholder(self, name: str, version: int, namespace: str = "") -> Model:
        """Register a version that is not loaded, so that the engine and the index have it."""
        spec = ModelSpec(
            name=name,
            version=version,
            platform="",
            max_batch_size=0,
            inputs={},
            outputs={},
            required_inputs=frozenset(),
            batcher=None,
            namespace=namespace,
        )
        model = Model(spec, self._loop)
        self.engine.add(model)
        self.table.put(spec.identifier, version, model)
        return model


def failure_text(error: Exception) -> str:
    """Returns the text of an error for states and logs; unexpected errors are logged in full."""
    error = resource_error(error) or error
    if isinstance(error, ServerError):
        return f"{error.kind}: {error.message}"
    logger.error("unexpected error while a model was loaded", exc_info=error)
    return f"Internal: {type(error).__name__}: {error}"
