# SPDX-License-Identifier: Apache-2.0
"""What the instances of a bound model tell the rate limiter, and the message that says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.utils.checks import check_type


@dataclasses.dataclass
class RateLimiterResource:
    """How much of a resource an instance needs while it executes a batch.

    Args:
        name: name of the resource; models that use the same name share it.
        count: amount that the instance needs.
        is_global: whether all devices share the resource; otherwise each device has its own.
    """

    name: str
    count: int
    is_global: bool = False


@dataclasses.dataclass
class RateLimiter:
    """When the instances of a model may run, if the server's rate limiter is on.

    Args:
        resources: what an instance needs while it executes a batch.
        priority: an instance with priority 2 gets half the turns of one with priority 1.
    """

    resources: Sequence[RateLimiterResource] = ()
    priority: int = 1

    def __post_init__(self) -> None:
        for resource in self.resources:
            check_type(resource, "resource of a rate limiter", RateLimiterResource)


def rate_limiter_message(limiter: RateLimiter) -> dict[str, Any]:
    """Make the ModelRateLimiter message as a dictionary.

    Raises:
        PyTritonBadParameterError: if a count is negative or the priority is not positive.
    """
    for resource in limiter.resources:
        if resource.count < 0:
            raise PyTritonBadParameterError(
                f"Expected a count of at least 0 for the resource {resource.name!r}, "
                f"got {resource.count}."
            )
    if limiter.priority < 1:
        raise PyTritonBadParameterError(
            f"Expected a priority of at least 1 for the rate limiter, got {limiter.priority}."
        )
    resources = [
        {"name": each.name, "count": each.count} | ({"global": True} if each.is_global else {})
        for each in limiter.resources
    ]
    return {"resources": resources, "priority": limiter.priority}


def read_rate_limiter(message: Mapping[str, Any]) -> RateLimiter:
    """Read a ModelRateLimiter message in its JSON form."""
    resources = [
        RateLimiterResource(
            each.get("name", ""), int(each.get("count", 0)), bool(each.get("global", False))
        )
        for each in message.get("resources", ())
    ]
    return RateLimiter(resources, int(message.get("priority", 0)) or 1)
