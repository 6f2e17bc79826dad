# SPDX-License-Identifier: Apache-2.0
"""The load of versions: the limit on concurrent loads, retries, and what came of them.

All models of the repositories share one `LoadCoordinator`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytriton.base.errors import InvalidArgumentError, ServerError, UnavailableError, resource_error
from pytriton.base.model_spec import ModelSpec
from pytriton.runtime.executor.worker import InstanceUnavailableError, ResourceLackError
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.engine.model import UNLOADED, Model, VersionState
from pytriton.serving.repository.loading.plans import (
    LoadedVersion,
    Loaders,
    find_loader,
    load_within,
)
from pytriton.serving.repository.reading.source import SourceFiles, make_plan
from pytriton.serving.repository.signing.verifier import SignatureVerifier

if TYPE_CHECKING:
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.repository.loading.ensemble_loader import StepFinder, StepUse
    from pytriton.serving.repository.reading.layout import FileHolder
    from pytriton.serving.repository.settings import RepositorySettings

logger = logging.getLogger(__name__)

_NO_ROOM = (
    "What was loaded before serves on. A reload starts new instances before it ends the old ones, "
    "so it needs as much room again; unload the model first if there is none"
)

DUPLICATE_MODEL = "model appears in two or more repositories"


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
        self.verifier = SignatureVerifier(settings.signing)
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
        self, source: SourceFiles, version: int, *, is_limited: bool, is_reload: bool = False
    ) -> LoadedVersion | str:
        """Load a version; returns it, or why it could not be loaded.

        The limit on concurrent loads must not apply if a model loads another one: the first one
        counts itself, and might wait for itself to end. `is_reload` says that other versions of the
        model are in service meanwhile.
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
        self, source: SourceFiles, version: int, *, is_reload: bool
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

        Raises InvalidArgumentError if `wanted` waits for `name`, or is the same model.
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

    def __repr__(self) -> str:
        return f"<LoadDependencies {len(self)} loads>"


class HeldVersion:
    """Passes everything on to a version. Implements `LoadedVersion`."""

    def __init__(self, version: LoadedVersion, holder: FileHolder) -> None:
        self._version = version
        self._holder: FileHolder | None = holder
        holder.retain()

    @property
    def model(self) -> ManagedModel:
        return self._version.model

    @property
    def is_current(self) -> bool:
        return self._version.is_current

    async def drain_and_stop(self, timeout_s: float | None = None) -> None:
        try:
            await self._version.drain_and_stop(timeout_s)
        finally:
            holder, self._holder = self._holder, None  # this may be called twice
            if holder is not None:
                holder.release()


def hold(version: LoadedVersion, holder: FileHolder | None) -> LoadedVersion:
    """Returns a version that counts as a user of its files, if these are removed after use."""
    return version if holder is None else HeldVersion(version, holder)


class LackOfResources(str):
    """Why a version could not be loaded now: its machine had no resources for that."""

    __slots__ = ()


def outcome_of(load: asyncio.Future[LoadedVersion | str]) -> LoadedVersion | str:
    """Returns the result of a load that has ended: a version, or why there is none."""
    return UNLOADED if load.cancelled() else load.result()


def failure_of(outcome: LoadedVersion | str) -> str:
    """Returns why a version cannot serve: the load failed, or its instances died already."""
    if isinstance(outcome, str):
        return outcome
    is_alive = outcome.model.state is VersionState.LOADING
    return "" if is_alive else f"Internal: {outcome.model.reason}"


def list_failures(failures: Mapping[int, str], end: str = "\n") -> str:
    """Returns the text about versions that cannot serve, by version."""
    return "".join(
        f"version {version} is at UNAVAILABLE state: {reason};{end}"
        for version, reason in sorted(failures.items())
    )


def given_up(name: str) -> UnavailableError:
    """Returns the error for a load that was not finished."""
    return UnavailableError(
        f"load failed for model '{name}': it was given up, as the model was unloaded or its files "
        "changed"
    )


class StateTable:
    """The states of all models that were loaded or should have been.

    A version's state is read from its engine model, so there is no second record that could differ.
    """

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, ManagedModel]] = {}
        self._problems: dict[str, str] = {}  # of models that could not be read

    def put(self, name: str, version: int, state: ManagedModel) -> None:
        """Set the engine model of a version."""
        self._versions.setdefault(name, {})[version] = state

    def set_problem(self, name: str, reason: str) -> None:
        """Store why a model could not be read; an empty reason clears it."""
        if reason:
            self._problems[name] = reason
        else:
            self._problems.pop(name, None)

    def forget(self, name: str) -> None:
        """Drop a model that is not there any more."""
        self._versions.pop(name, None)
        self._problems.pop(name, None)

    def is_ready(self) -> bool:
        """Returns whether all models are ready, except for those unloaded on purpose."""
        states = (state for versions in self._versions.values() for state in versions.values())
        return all(state.is_ready or state.is_withdrawn for state in states) and not any(
            not self._serves(name) for name in self._problems
        )

    def rows(self, places: Mapping[str, Collection[object]], *, ready: bool) -> list[IndexEntry]:
        """Returns the index, sorted by name and version."""
        names = sorted({*places, *self._versions, *self._problems})
        rows = (row for name in names for row in self._rows_of(name, len(places.get(name, ()))))
        return [row for row in rows if row.state == VersionState.READY.value or not ready]

    def _rows_of(self, name: str, place_count: int) -> Iterable[IndexEntry]:
        versions = self._versions.get(name, {})
        for version, state in sorted(versions.items()):
            yield IndexEntry(name, str(version), state.state.value, state.reason)
        problem = DUPLICATE_MODEL if place_count > 1 else self._problems.get(name, "")
        # The problem of a model that still serves is only logged.
        if problem and not self._serves(name):
            yield IndexEntry(name, state=VersionState.UNAVAILABLE.value, reason=problem)
        elif not versions:
            yield IndexEntry(name)

    def _serves(self, name: str) -> bool:
        versions = self._versions.get(name, {}).values()
        return any(state.state is VersionState.READY for state in versions)
