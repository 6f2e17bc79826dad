# SPDX-License-Identifier: Apache-2.0
"""All models of the repositories, and the order in which ensembles and their steps change.

An ensemble is loaded after the models of its steps, and follows them when they change: it is loaded
again when one is replaced, and leaves the service with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import ServerError
from pytriton.serving.engine.config_rules import ENSEMBLE
from pytriton.serving.engine.ensemble.ensemble_rules import composing_models
from pytriton.serving.repository.loading.ensemble_loader import (
    EnsembleLoader,
    StepFinder,
    StepUse,
)
from pytriton.serving.repository.loading.load_coordinator import (
    LoadCoordinator,
    LoadDependencies,
    given_up,
)
from pytriton.serving.repository.model_lifecycle import ModelLifecycle
from pytriton.serving.repository.reading.config_files import read_ensemble
from pytriton.serving.repository.reading.layout import ModelNames, ModelPlace

if TYPE_CHECKING:
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.repository.loading.ensemble_loader import MakeEnsemble
    from pytriton.serving.repository.loading.plans import Loaders
    from pytriton.serving.repository.reading.reach import Reach
    from pytriton.serving.repository.reading.source import Override
    from pytriton.serving.repository.settings import RepositorySettings

    Places = Mapping[str, Sequence[ModelPlace]]
    # Called with the number of finished models and their total number.
    Progress = Callable[[int, int], None]


logger = logging.getLogger(__name__)


def _ignore(finished: int, total: int) -> None:
    """Report no progress: there is no listener."""


class ModelSet:
    """The models that were loaded or should have been, by identifier."""

    def __init__(
        self,
        settings: RepositorySettings,
        engine: Engine,
        loaders: Loaders,
        loop: asyncio.AbstractEventLoop,
        make_ensemble: MakeEnsemble,
    ) -> None:
        self.lifecycles: dict[str, ModelLifecycle] = {}
        self.names = ModelNames(settings.namespaces)
        # Also of models that load others.
        self.load_dependencies = LoadDependencies(self.names.identifiers)
        self._finder, use = StepFinder(engine, self.lifecycles, self.names), StepUse()
        loaders = {**loaders, ENSEMBLE: EnsembleLoader(self._finder, use, make_ensemble)}
        self.loads = LoadCoordinator(settings, engine, loaders, loop, self._finder, use)
        self._unload_counts: Counter[str] = Counter()
        self._settings = settings
        self._engine = engine
        self._loop = loop
        self._rebound: set[str] = set()  # bound models that changed and were not followed yet
        self._following: asyncio.Task[None] | None = None
        engine.on_bound_changed = self._on_bound_changed
        engine.followed = self._followed
        engine.released = use.released

    def lifecycle(self, name: str) -> ModelLifecycle:
        """Returns the life of a model, which begins if it is not known yet."""
        lifecycle = self.lifecycles.get(name)
        if lifecycle is None:
            namespace, own_name = self.names.split(name)
            lifecycle = ModelLifecycle(own_name, self.loads, namespace)
            self.lifecycles[name] = lifecycle
        return lifecycle

    async def load(
        self,
        names: Collection[str],
        places: Places,
        *,
        overrides: Mapping[str, Override] | None = None,
        with_steps: bool = False,
        is_limited: bool = True,
        reach: Reach | None = None,
        on_progress: Progress = _ignore,
    ) -> dict[str, BaseException | None]:
        """Load models side by side, ensembles after their steps; ensembles on top of them follow.

        `places` has the directories of all models of the repositories by identifier, `overrides`
        what to load instead of their files. Returns why a load failed, by model; None if it
        succeeded. Raises InvalidArgumentError if a load would wait for itself, and
        PermissionDeniedError if a step is of a model beyond `reach`.
        """
        overrides = overrides or {}
        unload_counts = {name: self._unload_counts[name] for name in names}
        for name in names:
            self.lifecycle(name)  # it can be unloaded from now on
        loaded = await asyncio.to_thread(
            self._read_ensembles, names, places, overrides, with_steps=with_steps
        )
        for name, config in loaded.items():
            if reach is not None and config is not None:
                reach.check_steps(name, _step_names(config))
        for name in loaded:
            self.lifecycle(name)
            unload_counts.setdefault(name, self._unload_counts[name])
        former = {name: each for name, each in self.steps().items() if name not in loaded}
        steps = {**former, **{name: self._steps(each) for name, each in loaded.items() if each}}
        finished = 0

        async def work(name: str) -> None:
            nonlocal finished
            if name not in loaded:
                await self._refresh(name)
                return
            try:
                if self._unload_counts[name] != unload_counts[name]:
                    raise given_up(name)  # it was unloaded while the load waited for others
                await self._load_one(
                    name, places.get(name, ()), overrides.get(name), is_limited=is_limited
                )
            finally:
                finished += 1
                on_progress(finished, len(loaded))

        order = waits([*loaded, *dependents(loaded, steps) - loaded.keys()], steps)
        with self._waiting(order), self._announced(loaded):
            outcomes = await run_in_order(order, work)
        # Ensembles that another load has read meanwhile, while these models were not there yet.
        await self._refresh_all(dependents(loaded, self.steps()) - order.keys())
        return outcomes

    async def _load_one(
        self,
        name: str,
        places: Sequence[ModelPlace],
        override: Override | None,
        *,
        is_limited: bool,
    ) -> None:
        try:
            await self.lifecycle(name).load(places, override, is_limited=is_limited)
        except ServerError:  # it was logged
            raise
        except Exception:
            logger.exception("model '%s' could not be loaded", name)
            raise

    async def unload(self, names: Collection[str]) -> None:
        """Unload models; ensembles on top of them leave the service first."""
        # Kept here, because another task may drop the records of an unloaded model meanwhile.
        known = {name: self.lifecycles[name] for name in names if name in self.lifecycles}
        self._unload_counts.update(known.keys())
        steps = self.steps()
        above = dependents(known, steps).difference(known)
        for lifecycle in known.values():
            lifecycle.forget()
        await self._refresh_all(above)
        for name in reversed(bottom_up(steps.keys() & known, steps)):
            await known[name].unload()
        others = [lifecycle for name, lifecycle in known.items() if name not in steps]
        await asyncio.gather(*(lifecycle.unload() for lifecycle in others))
        await self._refresh_all(above)  # one that was loaded again meanwhile

    async def forget(self, names: Iterable[str]) -> None:
        """Wait until unwanted models have stopped, and drop all records of them."""
        unwanted = {
            name: lifecycle
            for name in names
            if (lifecycle := self.lifecycles.get(name)) is not None and lifecycle.is_unwanted
        }
        await asyncio.gather(*(each.stop(None) for each in unwanted.values()))
        for name, lifecycle in unwanted.items():
            if self.lifecycles.get(name) is lifecycle and lifecycle.is_unwanted:
                del self.lifecycles[name]
                self.loads.table.forget(name)
                self._engine.forget(name)

    def is_bound(self, name: str) -> bool:
        """Returns whether a process has bound a model of this name."""
        return self._engine.is_bound(name)

    async def stop(self, timeout_s: float | None) -> None:
        """Stop all models; those of steps after the ensembles, whose last requests need them."""
        end = None if timeout_s is None else self._loop.time() + timeout_s
        if self._following is not None:
            self._following.cancel()
        steps = self.steps()
        for name in reversed(bottom_up(steps, steps)):
            await self.lifecycles[name].stop(self._left(end))
        others = [each for name, each in self.lifecycles.items() if name not in steps]
        await asyncio.gather(*(each.stop(self._left(end)) for each in others))

    def _left(self, end: float | None) -> float | None:
        return None if end is None else max(0.0, end - self._loop.time())

    # Steps

    def steps(self) -> dict[str, list[str]]:
        """Returns the models that each ensemble's steps could mean, of all that should serve.

        Which one of several they mean depends on which of them are there.
        """
        return {name: self._steps(config) for name, config in self._ensembles()}

    def _steps(self, config: Any) -> list[str]:
        return [each for name in _step_names(config) for each in self.names.identifiers(name)]

    def _ensembles(self) -> Iterator[tuple[str, Any]]:
        for name, lifecycle in self.lifecycles.items():
            config = lifecycle.wanted_config
            if config is not None and config.platform == ENSEMBLE:
                yield name, config

    def superfluous_steps(self, name: str, kept: Collection[str]) -> set[str]:
        """Returns the models of an ensemble's steps that are not needed without it."""
        steps = {}
        for each, config in self._ensembles():
            namespace, _ = self.names.split(each)
            meant = [self._finder.named(step, namespace) for step in _step_names(config)]
            steps[each] = [step for step in meant if step is not None]
        return superfluous(name, steps, kept)

    def _read_ensembles(
        self,
        names: Iterable[str],
        places: Places,
        overrides: Mapping[str, Override],
        *,
        with_steps: bool,
    ) -> dict[str, Any | None]:
        """Returns the models to load, ensembles with their configuration."""
        found: dict[str, Any | None] = {}
        pending = list(dict.fromkeys(names))
        while pending:
            # Side by side, because a configuration may be far away.
            waiting = {name: [each.begin_config() for each in places.get(name, ())]
                       for name in pending}  # fmt: skip
            steps: list[str] = []
            for name, configs in waiting.items():
                override = overrides.get(name)
                found[name] = config = read_ensemble(
                    [wait() for wait in configs],
                    override=None if override is None else override.config,
                    config_name=self._settings.config_name,
                )
                if with_steps and config is not None:
                    steps += self._loaded_with(name, config, places)
            pending = [step for step in dict.fromkeys(steps) if step not in found]
        return found

    def _loaded_with(self, ensemble: str, config: Any, places: Places) -> Iterator[str]:
        """Yields the models that are loaded because an ensemble is loaded."""
        namespace, _ = self.names.split(ensemble)
        for name in _step_names(config):
            if self._engine.is_bound(name):
                continue
            step = self.names.find(name, namespace, places.__contains__)
            if step is None:  # several repositories have it, of which one may be in use
                step = self._finder.named(name, namespace)
            if step is not None and step in places:
                yield step

    @contextlib.contextmanager
    def _waiting(self, order: Mapping[str, Iterable[str]]) -> Iterator[None]:
        """Mark which loads wait for others, before any of them starts."""
        with contextlib.ExitStack() as stack:
            for name, steps in order.items():
                for step in steps:
                    stack.enter_context(self.load_dependencies.add(name, step))
            yield

    @contextlib.contextmanager
    def _announced(self, loaded: Mapping[str, Any | None]) -> Iterator[None]:
        """Let each ensemble know the others of a cycle, although they are not read yet."""
        announced = self._finder.announced
        mine = {name: config for name, config in loaded.items() if config is not None}
        announced.update(mine)
        try:
            yield
        finally:
            for name, config in mine.items():
                if announced.get(name) is config:  # else another load has read it, too
                    del announced[name]

    async def _refresh_all(self, names: Collection[str]) -> None:
        """Let ensembles follow their steps, from the bottom up."""
        for name in bottom_up(names, self.steps()):
            await self._refresh(name)

    async def _refresh(self, name: str) -> None:
        try:
            await self.lifecycles[name].refresh()
        except Exception:  # the caller has changed another model, which is done
            logger.exception("ensemble '%s' could not follow its steps", name)

    # Bound models

    def _on_bound_changed(self, name: str) -> None:
        """Let ensembles follow a model that was bound, unbound, or changed its state."""
        if not dependents([name], self.steps()):
            return
        self._rebound.add(name)
        if self._following is None:
            self._following = self._loop.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            while self._rebound:
                changed, self._rebound = self._rebound, set()
                await self._refresh_all(dependents(changed, self.steps()))
        finally:
            self._following = None

    async def _followed(self) -> None:
        """Wait until the ensembles have followed the bound models."""
        if self._following is not None:
            await asyncio.wait({self._following})


def _step_names(config: Any) -> list[str]:
    return [name for name, _ in composing_models(config)]


async def run_in_order(
    waits: Mapping[str, Collection[str]], work: Callable[[str], Awaitable[None]]
) -> dict[str, BaseException | None]:
    """Run work on models, each as soon as those that it waits for have ended, whatever came of it.

    `waits` has for each model those among them that it waits for, without cycles. Returns the
    exception of each model, None if it succeeded.
    """
    tasks: dict[str, asyncio.Future[None]] = {}

    async def run(name: str) -> None:
        if waits[name]:
            await asyncio.wait([tasks[each] for each in waits[name]])
        await work(name)

    for name in waits:
        tasks[name] = asyncio.ensure_future(run(name))
    if not tasks:
        return {}
    try:
        await asyncio.wait(tasks.values())
    except BaseException:
        for task in tasks.values():
            task.cancel()
            task.add_done_callback(_outcome)  # so that it counts as retrieved
        await asyncio.wait(tasks.values())
        raise
    return {name: _outcome(task) for name, task in tasks.items()}


def _outcome(task: asyncio.Future[None]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


Steps = Mapping[str, Collection[str]]


def dependents(names: Iterable[str], steps: Steps) -> set[str]:
    """Returns the ensembles that depend on some of these models, directly or through others."""
    users: dict[str, list[str]] = {}
    for ensemble, models in steps.items():
        for model in models:
            users.setdefault(model, []).append(ensemble)
    return _reached(names, users)


def waits(names: Iterable[str], steps: Steps) -> dict[str, list[str]]:
    """Returns for each of these models those among them that have to be loaded before it.

    Models of a cycle do not wait for each other, so that all of them get to the check of cycles.
    """
    members = dict.fromkeys(names)
    reached = {name: _reached([name], steps) for name in members if name in steps}
    return {
        name: [
            step
            for step in dict.fromkeys(steps.get(name, ()))
            if step in members and step != name and name not in reached.get(step, ())
        ]
        for name in members
    }


def bottom_up(names: Iterable[str], steps: Steps) -> list[str]:
    """Returns these models in an order in which every ensemble comes after its steps."""
    pending = waits(sorted(names), steps)
    ordered: list[str] = []

    def add(name: str) -> None:
        for step in pending.pop(name, ()):
            if step in pending:
                add(step)
        ordered.append(name)

    for name in list(pending):
        if name in pending:
            add(name)
    return ordered


def superfluous(name: str, steps: Steps, kept: Collection[str]) -> set[str]:
    """Returns the models of an ensemble's steps that are not needed without this ensemble.

    `kept` are the models that are needed in any case: clients have loaded them.
    """
    gone = {name}
    candidates = _reached([name], steps) - {name}
    while True:
        more = {
            each
            for each in candidates - gone
            if each not in kept
            and all(user in gone for user, models in steps.items() if each in models)
        }
        if not more:
            return gone - {name}
        gone |= more


def _reached(names: Iterable[str], edges: Steps) -> set[str]:
    """Returns all names reachable from these; the names themselves only through a cycle."""
    reached: set[str] = set()
    pending = list(names)
    while pending:
        for each in edges.get(pending.pop(), ()):
            if each not in reached:
                reached.add(each)
                pending.append(each)
    return reached
