# SPDX-License-Identifier: Apache-2.0
"""The seam between deciding what to load and doing it: plans go in, served versions come out.

`ModelRepositories` makes plans and asks a `VersionLoader`; it knows neither processes nor channels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec

from pytriton.engine.model import Model
from pytriton.messages import InferTensor


class InstancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One instance that a version gets, as its process is told."""

    name: str
    kind: str  # CPU, GPU or MODEL, as `initialize` reads it
    device_id: int = 0
    environment: dict[str, str] = {}  # that its process has beside the server's own


class WarmupSample(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that every instance answers before its version is ready."""

    name: str
    request_count: int  # of one execution
    execution_count: int
    inputs: tuple[InferTensor, ...]  # one row, without the batch dimension

    def request_inputs(self, *, batching: bool) -> dict[str, InferTensor]:
        """The inputs of one request; a batching model gets one row."""
        if not batching:
            return {tensor.name: tensor for tensor in self.inputs}
        return {
            tensor.name: InferTensor(tensor.name, tensor.dtype, (1, *tensor.shape), tensor.data)
            for tensor in self.inputs
        }


class VersionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to load one version of a model."""

    name: str
    version: int
    model_directory: Path  # what `initialize` gets as model_repository
    version_directory: Path
    config: Any  # the ModelConfig message, normalised; tensors are unchecked until auto-complete
    gpu_ids: tuple[int, ...] = ()  # devices that there are, for whoever normalises it again
    labels: dict[str, tuple[str, ...]] = {}  # names of the classes, by output
    instances: tuple[InstancePlan, ...]
    warmup: tuple[WarmupSample, ...] = ()
    load_timeout_s: float = 0.0  # also for each restart of an instance; 0: as long as it takes


class LoadedVersion(Protocol):
    """A version that is loaded, and can be served and ended."""

    @property
    def model(self) -> Model:
        """What the engine serves: all instances are there, the state is still LOADING."""

    async def retire(self, timeout_s: float | None = None) -> None:
        """Finish the requests that it has, at most for so long, and end the instances.

        Whoever calls took it out of the engine, or it never was in there.
        """


class VersionLoader(Protocol):
    """Starts instances of one backend, and makes a model of them."""

    @property
    def directory(self) -> str:
        """Where the backend's own files lie."""

    def start(self) -> None:
        """Begin what goes on beside the loads."""

    async def close(self) -> None:
        """Remove what was made for models; their versions were retired before."""

    async def load(self, plan: VersionPlan) -> LoadedVersion:
        """Load one version; any exception means that nothing of it is left running."""
