# SPDX-License-Identifier: Apache-2.0
"""Which regions of GPU memory clients and instances own, and which instances have used them.

The server opens no region. An instance that gets a request with tensors in one opens it, keeps it
open for later requests, and closes it when it is told here that the region is gone.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Protocol, cast

from pytriton.base.errors import NotFoundError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytriton.base.messages import DevicePlace, DeviceUse
    from pytriton.runtime.executor.inference import Instance

_numbers = itertools.count(1)
# Instances whose models want inputs in GPU memory where they are; most servers have none.
_keeping: weakref.WeakSet[DeviceInstance] = weakref.WeakSet()
# By the number of each region that is there: the instances that may have it open.
_users: dict[int, weakref.WeakKeyDictionary[DeviceInstance, None]] = {}
# By the numbers of those that are allocations of instances: what their owner is known by.
_owners: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
# By the same numbers, the instance that has used it last, as long as it is there.
_last_users: weakref.WeakValueDictionary[int, DeviceInstance] = weakref.WeakValueDictionary()


class DeviceInstance(Protocol):
    """An instance that takes requests with tensors in GPU memory."""

    name: str

    @property
    def takes_device_memory(self) -> bool:
        """Whether its process is on this machine and knows what to do with GPU memory."""

    def drop_regions(self, numbers: Collection[int]) -> None:
        """Have its process close regions, as soon as no request uses them any more."""


def add_keeping(instance: DeviceInstance) -> None:
    """Note that the model of an instance wants inputs that are in GPU memory there."""
    _keeping.add(instance)


def has_keeping() -> bool:
    """Returns whether there is such an instance."""
    return bool(_keeping)


def add_region(owner: object = None) -> int:
    """Returns the number of a new region, which a client has registered or an instance owns."""
    number = next(_numbers)
    _users[number] = weakref.WeakKeyDictionary()
    if owner is not None:
        _owners[number] = owner
    return number


def remove_region(number: int) -> None:
    """Let the instances that have used a region close it. Requests that wait for one will fail."""
    _last_users.pop(number, None)
    _owners.pop(number, None)
    for instance in list(_users.pop(number, ())):
        instance.drop_regions([number])


def owner_of(number: int) -> object:
    """Returns what `add_region` got for a region that is not gone."""
    return _owners.get(number)


def use(device: DeviceUse, instance: Instance) -> None:
    """Note that a request is about to be sent to an instance.

    Raises:
        UnsupportedError: The instance cannot take it.
        NotFoundError: A region was unregistered after the request came.
        UnavailableError: The process that a tensor is of has ended.
    """
    # Not `isinstance`, which takes 10 us for a protocol; other instances do not have this.
    if not getattr(instance, "takes_device_memory", False):
        raise UnsupportedError(
            f"instance '{instance.name}' does not take tensors in CUDA shared memory: only a "
            "model.py on the server's machine does"
        )
    user = cast("DeviceInstance", instance)
    for place in (*device.inputs.values(), *device.outputs.values()):
        add_user(place, user)


def add_user(place: DevicePlace, instance: DeviceInstance) -> None:
    """Note that an instance is about to get a tensor, and may open its region.

    Raises:
        NotFoundError: A region was unregistered.
        UnavailableError: The process that the tensor is of has ended.
    """
    users = _users.get(place.number)
    if users is None:
        if place.gpu:
            raise UnavailableError(f"GPU memory {place.region} is gone: its process has ended")
        raise NotFoundError(f"Unable to find cuda shared memory region: '{place.region}'")
    if instance is not _last_users.get(place.number):  # most regions are used by one
        users[instance] = None
        _last_users[place.number] = instance
