# SPDX-License-Identifier: Apache-2.0
"""The engine: finds the model that a name means, submits requests to it, reports readiness.

It depends on neither HTTP nor gRPC, so an in-process user, an ensemble or a test can call it, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from pytriton.base.errors import (
    InvalidArgumentError,
    NotFoundError,
    ServerError,
    UnavailableError,
)
from pytriton.base.model_spec import identifier_of
from pytriton.base.request_words import suggestion
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.costs import ServerCosts
from pytriton.serving.engine.delivery import refuse
from pytriton.serving.engine.failures import REFUSED, FailureBook, ModelFailures
from pytriton.serving.engine.hidden_exceptions import HiddenExceptions
from pytriton.serving.engine.latencies import LatencyPlan, plan_latencies
from pytriton.serving.engine.model_state import VersionState, reason_for_clients
from pytriton.serving.engine.observers import Observers
from pytriton.serving.engine.quotas import ModelQuotas, Quotas
from pytriton.serving.engine.served_model import ManagedModel, ServedModel
from pytriton.serving.engine.string_count import StringCounter
from pytriton.serving.engine.validation import UncountedStringsError, validate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from pytriton.base.failure_records import FailureGroup
    from pytriton.base.messages import InferRequest, ResponseSink
    from pytriton.base.quotas import PrincipalQuotas

_M = TypeVar("_M", bound=ServedModel)

_EXITING = "Server exiting"


def _do_nothing(*_: object) -> None:
    """Report no change: there is no listener."""


class RequestEngine(Generic[_M]):
    """Models by name and version, and the requests to them.

    It neither loads nor stops models. A front end in a process of its own has one, with models that
    pass their requests to the core.
    """

    def __init__(self, *, namespacing: bool = False) -> None:
        # By identifier and version. While a model is bound, its name means no other model.
        self._bound: dict[str, dict[int, _M]] = {}
        self._from_repositories: dict[str, dict[int, _M]] = {}
        # The identifiers that a name may mean, of models with a namespace.
        self._namesakes: dict[str, set[str]] = {}
        self.namespacing = namespacing
        # Whether errors suggest names of models; not if clients need a header to be told them.
        self.suggests_names = True
        # Whether errors say why a model is not ready, maybe in words of an exception.
        self.tells_reasons = True
        self._latest: dict[str, _M] = {}  # READY ones, for requests without a version
        self._draining: set[_M] = set()
        self._strings = StringCounter()
        self.failures = FailureBook()
        self.is_exiting = False  # set by `refuse`; each request reads it
        self.observers = Observers(self.find)
        self.on_changed: Callable[[], None] = _do_nothing  # the models or their states changed
        # Called with the name of a bound model that was added, removed, or changed its state.
        self.on_bound_changed: Callable[[str], None] = _do_nothing

    # Models

    def add(self, model: _M) -> None:
        """Register a model, in place of an earlier model of this version."""
        registry = self._bound if model.is_bound else self._from_repositories
        versions = registry.setdefault(model.spec.identifier, {})
        if model.spec.namespace:
            self._namesakes.setdefault(model.spec.name, set()).add(model.spec.identifier)
        replaced = versions.get(model.spec.version)
        if replaced is not None and replaced.is_bound:
            self._draining.add(replaced)  # until the process that bound it unbinds it
        versions[model.spec.version] = model
        self._latest.clear()
        model.on_changed = self._on_model_changed
        if model.is_bound:
            model.on_changed = partial(self._on_bound_model_changed, model.spec.name)
            self.on_bound_changed(model.spec.name)
        self.on_changed()

    def remove(self, model: _M) -> None:
        """Remove an unloaded model from the registry, unless another one has replaced it."""
        self._latest.clear()
        self._draining.discard(model)
        registry = self._bound if model.is_bound else self._from_repositories
        versions = registry.get(model.spec.identifier, {})
        if versions.get(model.spec.version) is model:
            del versions[model.spec.version]
            if not versions:
                del registry[model.spec.identifier]
                self._namesakes.get(model.spec.name, set()).discard(model.spec.identifier)
        if model.is_bound:
            self.on_bound_changed(model.spec.name)
        self.on_changed()

    def _on_model_changed(self) -> None:
        self._latest.clear()
        self.on_changed()

    def _on_bound_model_changed(self, name: str) -> None:
        self._on_model_changed()
        self.on_bound_changed(name)

    def models(self) -> Iterator[_M]:
        """Yields every registered model version that is not hidden, sorted by name and version."""
        for name in sorted({*self._bound, *self._from_repositories}):
            versions = self._versions(name)
            for version in sorted(versions):
                yield versions[version]

    def is_bound(self, name: str) -> bool:
        """Returns whether a process has bound a model of this name."""
        return name in self._bound

    def _versions(self, name: str) -> dict[int, _M]:
        """Returns the versions of the model that a name means; none if it means none or several."""
        versions = self._bound.get(name) or self._from_repositories.get(name)
        if versions is None:
            meant = self._meant(name)
            versions = self._from_repositories[meant[0]] if len(meant) == 1 else {}
        return versions

    def _meant(self, name: str) -> list[str]:
        """Returns the identifiers that a name means: those of this name that should serve."""
        return [each for each in self._namesakes.get(name, ()) if self._is_wanted(each)]

    def _is_wanted(self, identifier: str) -> bool:
        versions = self._from_repositories.get(identifier, {}).values()
        return not all(model.is_withdrawn for model in versions)

    def nearest(self, name: str, namespace: str) -> str:
        """Returns by which name a model of a namespace finds another: one of its own namespace."""
        own = identifier_of(namespace, name)
        return own if own != name and name not in self._bound and self._is_wanted(own) else name

    # Lookup

    def lookup(self, name: str, version: str = "") -> _M:
        """Returns the model that serves `name`; without a version, the newest that is ready."""
        if not version:
            model = self._latest.get(name)
            if model is not None and model.state is VersionState.READY:
                return model
        try:
            return self._look_up(name, version)
        except ServerError:
            if self.is_exiting:  # models end before connections: it need not be the client's fault
                raise UnavailableError(_EXITING) from None
            raise

    def _look_up(self, name: str, version: str) -> _M:
        versions = self._versions(name)
        if not versions:
            raise self._unknown(name)
        if version:
            return self._lookup_version(versions, parse_version(version))
        ready = [number for number, model in versions.items() if model.state is VersionState.READY]
        if not ready:
            reasons = self._reasons(versions.values())
            raise NotFoundError(
                f"Request for unknown model: '{_identifier(versions)}' has no available "
                f"versions{reasons}"
            )
        self._latest[name] = versions[max(ready)]
        return self._latest[name]

    def known(self, name: str, version: str = "") -> _M | None:
        """Like `lookup`, but None if the answer is not in memory; any thread may call it."""
        if version:
            versions = self._bound.get(name) or self._from_repositories.get(name) or {}
            model = versions.get(int(version)) if version.isdecimal() else None
        else:
            model = self._latest.get(name)
        return model if model is not None and model.state is VersionState.READY else None

    def _unknown(self, name: str) -> ServerError:
        """Returns the error for a name that means no model, or several."""
        if name not in self._namesakes:
            kind = InvalidArgumentError if self.namespacing else NotFoundError
            return kind(f"Request for unknown model: '{name}' is not found{self._suggestion(name)}")
        meant = self._meant(name)
        if not meant:
            return NotFoundError(f"Identifier of model '{name}' is not found in global map")
        return InvalidArgumentError(
            f"There are {len(meant)} identifiers of model '{name}' in global map, model namespace "
            "must be provided to resolve ambiguity."
        )

    def _suggestion(self, name: str) -> str:
        """Returns which model may have been meant, as the end of an error; clients match its start.

        Names of models in namespaces are not suggested, as one name may mean several.
        """
        if not self.suggests_names or self.namespacing:
            return ""
        return suggestion(name, [*self._bound, *self._from_repositories])

    def _lookup_version(self, versions: dict[int, _M], version: int) -> _M:
        name = _identifier(versions)
        model = versions.get(version)
        if model is None:
            raise NotFoundError(
                f"Request for unknown model: '{name}' version {version} is not found"
            )
        if model.state is not VersionState.READY:
            raise UnavailableError(
                f"Request for unknown model: '{name}' version {version} is not at ready state"
                f"{self._reasons([model])}"
            )
        return model

    def _reasons(self, models: Iterable[ServedModel]) -> str:
        """Returns why versions are not ready, shortened; the index has the whole reasons."""
        tell = partial(reason_for_clients, is_told=self.tells_reasons)
        texts = [
            f"version {model.spec.version}: {tell(model.reason)}"
            for model in models
            if model.reason and not model.is_withdrawn
        ]
        return f" ({'; '.join(texts)})" if texts else ""

    def find(self, name: str, version: str = "") -> _M | None:
        """Like `lookup`, but returns None if the model is not ready."""
        try:
            return self.lookup(name, version)
        except ServerError:
            return None

    def ready_versions(self, name: str) -> list[int]:
        """Returns the versions of a model that are ready, in ascending order."""
        versions = self._versions(name)
        return sorted(v for v, model in versions.items() if model.state is VersionState.READY)

    def ready_models(self) -> list[str]:
        """Returns the names of the models that are ready, sorted."""
        ready = {model.spec.name for model in self.models() if model.state is VersionState.READY}
        return sorted(ready)

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Returns whether the model is ready; an unknown model is not."""
        if version:
            parse_version(version)
        model = self.find(name, version)
        return model is not None and model.is_ready

    # Requests

    def refuse(self) -> None:
        """Refuse new requests; accepted requests continue."""
        self.is_exiting = True
        self.on_changed()

    def infer(
        self,
        request: InferRequest,
        sink: ResponseSink,
        fitting: ServedModel | None = None,
    ) -> Inference:
        """Validate a request against its model and queue it.

        The sink receives every result, also a refusal, maybe before this method returns. The handle
        cancels, pauses and resumes it. `fitting` is the model, if the request is known to fit, and
        to be the only one for now.
        """
        inference = Inference(request, sink)
        if fitting is None:
            self.submit(inference)
        else:
            self.submit_validated(fitting, inference, is_alone=True)
        return inference

    def submit(
        self, inference: Inference, *, is_alone: bool = False, is_observed: bool = False
    ) -> None:
        """Find the model of a request, validate it and queue it; see `infer`.

        `is_alone` says that it is the only one for now, and `is_observed` that it was submitted
        before.
        """
        if self.observers.are_there and not is_observed:
            self.observers.begin(inference)
        request = inference.request
        model: _M | None = None
        try:
            if self.is_exiting:
                raise UnavailableError(_EXITING)
            # `lookup` would find the same; not calling it saves 0.3 us.
            model = self._latest.get(request.model_name)
            if model is None or request.model_version or model.state is not VersionState.READY:
                model = self.lookup(request.model_name, request.model_version)
            validate(request, model.spec)
            if self._strings.behind and self._strings.holds_back(inference, self.submit_again):
                return
            inference.owner = model
            if model.quotas is not None and not request.call_depth:
                model.quotas.admit(inference, time.monotonic_ns())
            model.submit(inference, time.monotonic_ns(), is_alone=is_alone)
        except UncountedStringsError:
            self._strings.count(inference, self.submit_again)
        except ServerError as error:
            self.turn_away(inference, error, model)

    def submit_again(self, inference: Inference) -> None:
        """Submit a request whose strings were counted meanwhile, or whose model was replaced."""
        self.submit(inference, is_observed=True)

    def submit_validated(
        self, model: ServedModel, inference: Inference, *, is_alone: bool = False
    ) -> None:
        """Like `submit`, for a request that another thread has validated against its model."""
        if self.is_exiting or model.state is not VersionState.READY:
            self.submit(inference)  # it finds out what is wrong, or another version
            return
        if self.observers.are_there:
            self.observers.begin(inference, model)
        try:
            inference.owner = model
            if model.quotas is not None:
                model.quotas.admit(inference, time.monotonic_ns())
            model.submit(inference, time.monotonic_ns(), is_alone=is_alone)
        except ServerError as error:
            self.turn_away(inference, error, model)

    def submit_to(self, model: ServedModel, inference: Inference) -> None:
        """Like `submit`, for a request of the server itself, with a model that was looked up.

        Such a request is a part of one that was accepted before, so it is accepted while the server
        exits or the model is being unloaded, and no quota counts it again.
        """
        try:
            validate(inference.request, model.spec)
            if self._strings.behind and self._strings.holds_back(
                inference, partial(self.submit_to, model)
            ):
                return
            inference.owner = model
            model.submit(inference, time.monotonic_ns())
        except UncountedStringsError:
            self._strings.count(inference, partial(self.submit_to, model))
        except ServerError as error:
            self.turn_away(inference, error, model)

    def turn_away(
        self, inference: Inference, error: ServerError, model: ServedModel | None
    ) -> None:
        """Refuse a request, and note why."""
        self._note_refusal(inference, error, model)
        refuse(inference, error)

    def _note_refusal(
        self, inference: Inference, error: ServerError, model: ServedModel | None
    ) -> None:
        self.failures.add(None if model is None else model.spec, inference, error, REFUSED)

    def report_refusal(self, name: str, version: str, request_id: str, error: ServerError) -> None:
        """Note that a request was refused before the engine got it; the name may be unknown."""
        # `find` alone would take 20 us for an unknown name: it makes the error for a client.
        model = self.find(name, version) if self._versions(name) else None
        spec = None if model is None else model.spec
        self.failures.add_refusal(spec, name, request_id, error)
        if model is not None:
            self._count_refused(model.spec.identifier, model.spec.version, 1)

    def _count_refused(self, identifier: str, version: int, count: int) -> None:
        """Count refused requests of a model, where its statistics are."""


class Engine(RequestEngine[ManagedModel]):
    """All models of a server: requests to them, their readiness, and their end."""

    def __init__(
        self,
        *,
        strict_readiness: bool = True,
        latency_plan: LatencyPlan | None = None,
        counts_costs: bool = True,
        namespacing: bool = False,
        awaits_models: bool = False,
        hides_exceptions: bool = False,
    ) -> None:
        super().__init__(namespacing=namespacing)
        self.tells_reasons = not hides_exceptions
        self._hidden = HiddenExceptions() if hides_exceptions else None
        self._strict_readiness = strict_readiness
        self._latency_plan = latency_plan  # None: only sums of latencies are recorded
        self._counts_costs = counts_costs
        self._reports_not_ready = False  # still serving, but load balancers should send no more
        self.awaits_models = awaits_models  # not ready before the first ones are bound
        # Waits until ensembles have followed the changes of bound models; None: there are none.
        self.followed: Callable[[], Awaitable[None]] | None = None
        self.costs = ServerCosts(self.models)
        # Waits until no ensemble needs a model that gets no new requests; None: there are none.
        self.released: Callable[[ManagedModel], Awaitable[None]] | None = None
        # Waits until every front end knows the current models; None: all are in this process.
        self.settled: Callable[[], Awaitable[None]] | None = None
        self._quotas: Quotas | None = None  # None: nobody has limits

    # Principals

    def set_quotas(self, principals: Mapping[str, PrincipalQuotas]) -> None:
        """Limit principals from now on, and let them share models by their weights.

        Without any, nobody has limits, and requests are served in the order of their arrival.
        Limits that stay as they were go on with what was used of them.
        """
        self._quotas = Quotas(principals, self._quotas) if principals else None
        for registry in (self._bound, self._from_repositories):
            for versions in registry.values():
                for model in versions.values():
                    self._limit(model)

    def _limit(self, model: ManagedModel) -> None:
        """Apply the quotas to a model."""
        if self._quotas is None:
            if model.quotas is not None:
                model.set_quotas(None)
                model.statistics.accounts = ()
            return
        spec = model.spec
        limits = model.quotas or ModelQuotas(spec.name, spec.version, model.statistics)
        limits.apply(self._quotas)
        model.set_quotas(limits)

    # Readiness

    def begin_exit(self) -> None:
        """Report from now on that the server is not ready, but continue to serve."""
        self._reports_not_ready = True
        self.on_changed()

    def stop_awaiting(self) -> None:
        """Be ready if all models are: the first ones are bound."""
        if self.awaits_models:
            self.awaits_models = False
            self.on_changed()

    def is_ready(self) -> bool:
        """Returns whether the server is ready: with strict readiness, if all models are."""
        if self.is_exiting or self._reports_not_ready:
            return False
        if not self._strict_readiness:
            return True
        return not self.awaits_models and all(
            model.is_ready or model.is_withdrawn for model in self.models()
        )

    # Models

    def add(self, model: ManagedModel) -> None:
        """Register a model that is being loaded, in place of an earlier model of this version."""
        model.statistics.recent = ModelFailures(self.failures, model.spec)
        if self._latency_plan is not None:
            model.statistics.latencies = plan_latencies(self._latency_plan, model.spec)
        if self._counts_costs:
            model.statistics.server_costs = self.costs
        else:
            model.costs = None
        if self._hidden is not None:
            model.hidden = self._hidden
        self._limit(model)
        super().add(model)

    def _note_refusal(
        self, inference: Inference, error: ServerError, model: ServedModel | None
    ) -> None:
        super()._note_refusal(inference, error, model)
        if model is not None:
            self._count_refused(model.spec.identifier, model.spec.version, 1)

    def add_refusals(self, groups: Iterable[FailureGroup]) -> None:
        """Add what a front end in a process of its own has refused."""
        for group in groups:
            self._count_refused(group.model, group.version, group.count)
            self.failures.merge(group)

    def _count_refused(self, identifier: str, version: int, count: int) -> None:
        model = self._versions(identifier).get(version)  # None: it was unloaded meanwhile
        if model is not None:
            model.statistics.refused += count

    def set_ready(self, model: ManagedModel) -> None:
        """Start to serve a loaded model."""
        model.become(VersionState.READY)
        self._latest.clear()

    def forget(self, name: str) -> None:
        """Remove all unloaded versions of a repository's model, which lookups would mention."""
        for model in list(self._from_repositories.get(name, {}).values()):
            if model.state is VersionState.UNAVAILABLE:
                self.remove(model)

    @property
    def draining(self) -> AbstractSet[ManagedModel]:
        """The models that get no new requests and are finishing those that they have."""
        return self._draining

    def begin_draining(self, model: ManagedModel) -> None:
        """Count a model as draining, also if it is no longer in the registry."""
        self._draining.add(model)

    def end_draining(self, model: ManagedModel) -> None:
        """Stop counting a model as draining: it has finished its requests."""
        self._draining.discard(model)

    async def unload(self, model: ManagedModel, timeout_s: float | None = None) -> None:
        """Give a model no new requests, let it finish those that it has, then stop it.

        Requests that are not finished in time get an error.
        """
        self.remove(model)
        self.begin_draining(model)
        if model.state is VersionState.READY:
            model.become(VersionState.UNLOADING)
        try:
            if self.released is not None:  # the last requests of ensembles may need it
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.released(model), timeout_s)
            await model.drain(timeout_s)
        finally:
            self.end_draining(model)
            model.stop()

    async def wait_until_known(self) -> None:
        """Wait until ensembles and all front ends have followed the changes made so far.

        Who asked for a change may send the next request to any front end.
        """
        if self.followed is not None:
            await self.followed()
        if self.settled is not None:
            await self.settled()

    def models_with_statistics(self, name: str = "", version: str = "") -> list[ManagedModel]:
        """Returns the models whose statistics a client wants; all ready ones without a name."""
        if not name:
            return [model for model in self.models() if model.state is VersionState.READY]
        versions = self.ready_versions(name)
        if not versions:
            raise InvalidArgumentError(f"requested model '{name}' is not available")
        if version:
            number = parse_version(version)
            if number not in versions:
                raise InvalidArgumentError(
                    f"requested model version is not available for model '{name}'"
                )
            versions = [number]
        return [self._versions(name)[number] for number in versions]


def _identifier(versions: dict[int, _M]) -> str:
    return next(iter(versions.values())).spec.identifier


def parse_version(version: str) -> int:
    """Parse a version as clients write it."""
    try:
        number = int(version)
    except ValueError:
        number = 2**63
    if not -(2**63) <= number < 2**63:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{version}' "
            "(details: stol), version should be an integral value > 0"
        )
    if number < 0:
        raise InvalidArgumentError(
            f"invalid model version specified '{version}' , version should be an integral value > 0"
        )
    return number
