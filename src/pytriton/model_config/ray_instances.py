# SPDX-License-Identifier: Apache-2.0
"""Instances of a bound model that run as actors of a Ray cluster: their number and resources."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from pytriton.exceptions import PyTritonBadParameterError

# Ray's names of resources that have an argument of their own here.
_OWN_ARGUMENTS = {"CPU": "num_cpus", "GPU": "num_gpus"}
_OF_RAY = ("memory", "object_store_memory")  # Ray takes them in another way, which is not offered
_LEAST_AMOUNT = 0.0001  # Ray counts resources in these units


@dataclasses.dataclass(frozen=True)
class Ray:
    """Runs the instances of a model as actors of a Ray cluster.

    Args:
        count: number of instances; default is 1, unless `min` and `max` are given.
        min: least number of instances of a model that is scaled with its load; default is 1.
        max: greatest number of instances of a model that is scaled with its load.
        num_cpus: processors that each actor takes of its node.
        num_gpus: GPUs that each actor takes: a fraction below 1, so that several actors share one,
            or a whole number.
        resources: resources that nodes declare, by name, and how much each actor takes.
        group_size: number of actors that are one instance together.
        spread: whether the actors are spread over the nodes; otherwise nodes are filled in turn.
        idempotent: whether a batch may be executed again if its actor is lost before it answered.
        start_timeout_s: how long an actor may take until its model is ready, the wait for a free
            node included.
        no_instance_timeout_s: how long requests wait while the model has no instance at all; 0: as
            long as they may wait in the queue.
        target: how many full batches should wait or run for each instance of a model that is
            scaled; for one that runs many requests at the same time, a small fraction.
        scale_up_after_s: how long more instances have to be wanted before they are started.
        scale_down_after_s: how long fewer instances have to be wanted before some are ended.

    Raises:
        PyTritonBadParameterError: if a value is out of range, or contradicts another.
    """

    count: int | None = None
    min: int | None = None
    max: int | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)
    group_size: int = 1
    spread: bool = True
    idempotent: bool = False
    start_timeout_s: float = 120.0
    no_instance_timeout_s: float = 30.0
    target: float = 1.0
    scale_up_after_s: float = 2.0
    scale_down_after_s: float = 120.0

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_resources()
        for name in ("spread", "idempotent"):
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, "True or False", getattr(self, name))
        for name in ("start_timeout_s", "target"):
            if not _is_number(getattr(self, name)) or getattr(self, name) <= 0:
                raise _wrong(name, "a number above 0", getattr(self, name))
        for name in ("no_instance_timeout_s", "scale_up_after_s", "scale_down_after_s"):
            if not _is_number(getattr(self, name)) or getattr(self, name) < 0:
                raise _wrong(name, "a number of seconds of at least 0", getattr(self, name))

    @property
    def minimum(self) -> int:
        """The number of instances that it is started with, and never has fewer of."""
        return self.count or self.min or 1

    @property
    def maximum(self) -> int:
        """The number of instances that it never has more of."""
        return self.count or self.max or 1

    @property
    def is_scaled(self) -> bool:
        """Whether the number of instances follows the load."""
        return self.minimum != self.maximum

    def _check_counts(self) -> None:
        for name in ("count", "min", "max", "group_size"):
            value = getattr(self, name)
            if value is None and name != "group_size":
                continue
            if type(value) is not int or value < 1:
                raise _wrong(name, "a whole number of at least 1", value)
        if self.count is not None and (self.min is not None or self.max is not None):
            raise PyTritonBadParameterError(
                "Expected either count, or min and max for a number that follows the load, got "
                f"count={self.count} with min={self.min} and max={self.max}."
            )
        if self.min is not None and self.max is None:
            raise PyTritonBadParameterError(
                f"Expected max together with min={self.min}: without it, the number of instances "
                "has no bound. For a fixed number, give count."
            )
        if self.minimum > self.maximum:
            raise PyTritonBadParameterError(
                f"Expected min to be at most max, got min={self.min} and max={self.max}."
            )

    def _check_resources(self) -> None:
        _check_amount("num_cpus", self.num_cpus)
        _check_amount("num_gpus", self.num_gpus)
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise _wrong("num_gpus", "a fraction below 1, or a whole number", self.num_gpus)
        if not isinstance(self.resources, Mapping):
            raise _wrong("resources", "a dict with amounts by name", self.resources)
        for name, amount in self.resources.items():
            if not isinstance(name, str) or not name:
                raise _wrong("each name in resources", "text that is not empty", name)
            if name in _OWN_ARGUMENTS:
                raise PyTritonBadParameterError(
                    f"Expected {_OWN_ARGUMENTS[name]}={amount!r} in place of the resource {name!r}."
                )
            if name in _OF_RAY:
                raise PyTritonBadParameterError(
                    f"Expected resources that nodes declare with 'ray start --resources', got "
                    f"{name!r}, of which an actor cannot take a part here."
                )
            _check_amount(f"the resource {name!r}", amount)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)


def _check_amount(name: str, amount: float) -> None:
    if not _is_number(amount) or amount < 0 or 0 < amount < _LEAST_AMOUNT:
        expected = f"a number that is 0 or at least {_LEAST_AMOUNT}"
        raise _wrong(name, expected, amount)


def _wrong(name: str, expected: str, got: object) -> PyTritonBadParameterError:
    return PyTritonBadParameterError(f"Expected {name} to be {expected}, got {got!r}.")
