# SPDX-License-Identifier: Apache-2.0
"""The interface between deciding what to load and loading it: loaders turn plans into versions.

`ModelRepositories` makes plans and calls a `VersionLoader`. It depends on neither processes nor
channels. The time limit of a load is here, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from pytriton.base.background_tasks import within
from pytriton.base.errors import UnavailableError
from pytriton.base.messages import InferTensor
from pytriton.base.model_spec import identifier_of
from pytriton.runtime.executor.worker import Placement
from pytriton.serving.engine.config import seconds_parameter
from pytriton.serving.engine.config_rules import ENSEMBLE
from pytriton.serving.engine.rate_limiter import InstanceLimits
from pytriton.serving.engine.served_model import ManagedModel
from pytriton.serving.repository.reading.backend_choice import BackendCode


class InstancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a version, as its process gets to know it."""

    name: str
    kind: str  # CPU, GPU or MODEL, as `initialize` reads it
    device_id: int = 0
    environment: dict[str, str] = {}  # added to the server's own
    limits: InstanceLimits = InstanceLimits()
    is_passive: bool = False  # it is started, but gets no requests
    placement: Placement | None = None  # in a cluster; None: on this machine

    def numbered(self, index: int) -> InstancePlan:
        """Returns the plan of another instance of the same group."""
        group, _, _ = self.name.rpartition("_")
        return msgspec.structs.replace(self, name=f"{group}_{index}")


class WarmupSample(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that every instance executes before its version is ready."""

    name: str
    request_count: int  # of one execution
    execution_count: int
    inputs: tuple[InferTensor, ...]  # one row, without the batch dimension

    def request_inputs(self, *, batching: bool) -> dict[str, InferTensor]:
        """Returns the inputs of one request; with one row if the model batches."""
        if not batching:
            return {tensor.name: tensor for tensor in self.inputs}
        return {
            tensor.name: InferTensor(tensor.name, tensor.dtype, (1, *tensor.shape), tensor.data)
            for tensor in self.inputs
        }


class VersionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a loader for one version of a model."""

    name: str
    namespace: str = ""
    version: int
    model_directory: Path  # `model_repository` of `initialize`
    version_directory: Path
    code: BackendCode | None = None  # the file that runs it; None for an ensemble
    config: Any  # the ModelConfig message, normalised; tensors are unchecked until auto-complete
    gpu_ids: tuple[int, ...] = ()  # available devices, to normalise `config` again
    labels: dict[str, tuple[str, ...]] = {}  # names of the classes, by output
    initial_states: dict[str, bytes] = {}  # contents of their files, by the state's input
    instances: tuple[InstancePlan, ...]
    warmup: tuple[WarmupSample, ...] = ()
    load_timeout_s: float = 0.0  # also for each restart of an instance; 0: no limit
    on_ray: bool = False  # its processes run on a cluster
    sharing: str = ""  # how its files can be on all nodes of a cluster, for people

    @property
    def identifier(self) -> str:
        """Its name, with its namespace if it has one."""
        return identifier_of(self.namespace, self.name)


class LoadedVersion(Protocol):
    """A loaded version that can be put in service and stopped."""

    @property
    def model(self) -> ManagedModel:
        """The engine's model. It has all its instances, and its state is still LOADING."""

    @property
    def is_current(self) -> bool:
        """False if it was made of other models that have been replaced since."""

    async def drain_and_stop(self, timeout_s: float | None = None) -> None:
        """Wait at most `timeout_s` until its requests are finished, then stop the instances.

        The engine must not send requests to it any more.
        """


class VersionLoader(Protocol):
    """Makes a model of a plan."""

    async def load(self, plan: VersionPlan) -> LoadedVersion:
        """Load one version; if this raises an exception, none of its processes is left."""


WORKERS = "python"  # the loader of all models that run in worker processes, whatever their backend

Loaders = Mapping[str, VersionLoader]


def find_loader(loaders: Loaders, config: Any) -> VersionLoader:
    """Returns the loader of a model. Which file a worker runs is in the plan that it gets."""
    return loaders[ENSEMBLE if config.platform == ENSEMBLE else WORKERS]


PARAMETER = "LOAD_TIMEOUT_SECS"  # of a model, in place of the server's setting

_T = TypeVar("_T")


class LoadTimeoutError(UnavailableError):
    """A load took longer than it may."""


def load_timeout_s(config: Any, default_s: float) -> float:
    """Returns the time limit for loading a version of the model; 0: no limit."""
    return seconds_parameter(config, PARAMETER, default_s)


async def load_within(timeout_s: float, load: Awaitable[_T]) -> _T:
    """Await a load with a time limit; 0: no limit.

    Raises LoadTimeoutError if it took longer and was cancelled.
    """
    if not timeout_s:
        return await load
    try:
        return await within(timeout_s, load)
    except asyncio.TimeoutError:
        raise LoadTimeoutError(
            f"it was not loaded within {timeout_s:g} s, and its processes were ended"
        ) from None
