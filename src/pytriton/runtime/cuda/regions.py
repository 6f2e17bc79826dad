# SPDX-License-Identifier: Apache-2.0
"""GPU memory of other processes in that of an instance: opened once, used, closed.

A region of a client, or an allocation of another instance, is opened with the first request that
uses it, and kept. It is closed when the server says that the client has unregistered it or that the
other process has freed it, and no tensor of a model is on it any more. Of allocations without
tensors, only those used last stay open, as each keeps memory of a process that may have freed it.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    ServerError,
    UnavailableError,
)
from pytriton.runtime.cuda.device_array import DeviceArray, Order, usable_driver
from pytriton.runtime.cuda.driver import CudaError
from pytriton.runtime.transport.memory import observers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import numpy as np
    from numpy.typing import NDArray

    from pytriton.base.messages import DevicePlace
    from pytriton.runtime.cuda.driver import Driver

logger = logging.getLogger(__name__)

MOST_ALLOCATIONS = 32  # of other instances that stay open without a tensor on them
# Regions that were dropped and that requests may still name: more than there can be such requests.
MOST_DROPPED = 4096


def _words(place: DevicePlace) -> str:
    if place.gpu:
        return f"GPU memory {place.region}"
    return f"CUDA shared memory region '{place.region}'"


def _after_work(driver: Driver, device: int, then: Callable[[], None]) -> None:
    """Call `then` after all that the GPU was asked for until now; for finalizers."""
    if observers:
        observers[0].release_after_work(then)
        return
    try:
        with driver.using(device):
            driver.synchronize()
    except CudaError as error:  # the memory cannot be read any more, either
        logger.debug("GPU memory is given back after an error: %s", error)
    then()


def _close(driver: Driver, device: int, address: int, words: str) -> None:
    """Close a region, if it is open, and release its context."""
    try:
        try:
            if address:
                with driver.using(device):
                    driver.close_memory(address)
        finally:
            driver.release_context(device)
    except CudaError as error:
        logger.warning("%s cannot be closed: %s", words, error)


class OpenRegion:
    """A region that this process has opened; it is closed when nothing refers to it any more.

    What reads it may run after the last tensor on it is gone, so the GPU is waited for before.
    """

    __slots__ = ("_has_context", "_process", "_words", "address", "device", "driver", "size")

    def __init__(self, driver: Driver, place: DevicePlace) -> None:
        self._process = os.getpid()
        self.driver = driver
        self.device = place.device
        self._words = _words(place)
        self.address = 0  # until it is open
        self.size = place.region_size
        self._has_context = False
        try:
            # For as long as it is open: it would end with the context, which a model that does not
            # use CUDA itself does not have otherwise.
            driver.retain_context(place.device)
            self._has_context = True
            with driver.using(place.device):
                self.address = driver.open_memory(place.handle)
                start, size = driver.extent_of(self.address)
        except CudaError as error:
            raise InvalidArgumentError(f"{_words(place)} cannot be opened: {error}") from error
        # The client has said how large it is. Beyond its end, the GPU would fail for good.
        room = start + size - self.address
        if room < place.region_size:
            raise InvalidArgumentError(
                f"{_words(place)} was registered with {place.region_size} bytes, but its memory "
                f"has {room}"
            )

    @property
    def is_of_parent(self) -> bool:
        """Whether this process was forked after it was opened: its driver is dead."""
        return self._process != os.getpid()

    def __del__(self) -> None:
        if self.is_of_parent:
            return
        driver, device = self.driver, self.device
        close = functools.partial(_close, driver, device, self.address, self._words)
        if self.address:
            _after_work(driver, device, close)
        elif self._has_context:
            close()


class Lease:
    """Memory of another instance, until the last tensor on it is gone.

    Its owner may use the memory again only after all that the GPU was asked for until then: what
    reads the tensor may run after the tensor itself is gone.
    """

    __slots__ = ("__weakref__", "_end", "address", "number", "region", "size")

    def __init__(self, region: OpenRegion, place: DevicePlace, end: Callable[[int], None]) -> None:
        self.region = region
        self.address = region.address + place.offset
        self.size = place.size
        self.number = place.lease
        self._end = end

    def __del__(self) -> None:
        region = self.region
        if region.is_of_parent:
            return
        _after_work(region.driver, region.device, functools.partial(self._end, self.number))


class OpenRegions:
    """The regions that this process keeps open, by the numbers that the server gave them.

    `end_lease` is called with the number of a lease that has ended, by any thread.
    """

    def __init__(
        self,
        find_driver: Callable[[], Driver] = usable_driver,
        end_lease: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._find_driver = find_driver
        self._end_lease = end_lease
        self._regions: dict[int, OpenRegion] = {}
        self._lent: dict[int, None] = {}  # those of them that are allocations; used last is last
        # A request that came before the drop opens such a region for itself: nobody would close it.
        self._dropped: dict[int, None] = {}
        self._leases: weakref.WeakValueDictionary[int, Lease] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()  # models may send responses from several threads

    def __len__(self) -> int:
        return len(self._regions)

    def array(
        self, place: DevicePlace, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> DeviceArray:
        """Returns an input on the memory of the client, which it keeps open.

        Raises:
            ServerError: The region cannot be opened.
        """
        region = self._open(place)
        address = region.address + place.offset
        # The client has written it before it has sent the request.
        return DeviceArray(address, region.device, dtype, shape, region, Order.COMPLETE)

    def lease(
        self, place: DevicePlace, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> DeviceArray:
        """Returns a tensor in memory of another instance, which keeps it until the tensor is gone.

        Raises:
            UnavailableError: The memory cannot be opened.
        """
        try:
            driver = self._find_driver()
            if place.offset + place.size > place.region_size:
                raise InvalidArgumentError(
                    f"GPU memory {place.region} has {place.region_size} bytes, and no {place.size} "
                    f"from {place.offset}"
                )
            # Devices have other numbers here if this process does not see all of them.
            place = msgspec.structs.replace(place, device=driver.device_with(place.gpu))
            region = self._open(place)
        except (CudaError, ServerError) as error:
            self._end_lease(place.lease)
            text = f"{_words(place)} cannot be opened: {error}"
            if isinstance(error, ServerError):
                text = error.message
            raise UnavailableError(text) from error
        for observer in observers:
            observer.on_device_memory()
        lease = Lease(region, place, self._end_lease)
        self._leases[lease.number] = lease
        self._keep_few(place.number)
        return DeviceArray(lease.address, region.device, dtype, shape, lease, Order.COMPLETE)

    def has_lease(self, number: int) -> bool:
        """Returns whether a tensor is on memory that was lent under this number."""
        return number in self._leases

    def lease_at(self, array: DeviceArray) -> tuple[Lease, int] | None:
        """Returns a lease of the memory that an array is in, and where; None if there is none.

        The same memory may have been lent several times, so it need not be that of the array.
        """
        end = array.address + array.nbytes
        # Not `values()`, which fails if another thread adds one meanwhile.
        for reference in self._leases.valuerefs():
            lease = reference()
            if lease is None:
                continue
            if lease.address <= array.address and end <= lease.address + lease.size:
                return lease, array.address - lease.address
        return None

    def is_open_at(self, array: DeviceArray) -> bool:
        """Returns whether an array is in memory of another process."""
        regions = list(self._regions.values())
        return any(each.address <= array.address < each.address + each.size for each in regions)

    def _keep_few(self, number: int) -> None:
        """Close allocations that were not used for long, if there are too many."""
        closed = []
        with self._lock:
            self._lent.pop(number, None)
            if number in self._regions:
                self._lent[number] = None
            while len(self._lent) > MOST_ALLOCATIONS:
                oldest = next(iter(self._lent))
                del self._lent[oldest]
                closed.append(self._regions.pop(oldest, None))
        del closed  # outside of the lock: closing calls the driver

    def write(self, place: DevicePlace, array: DeviceArray | NDArray[Any], output: str) -> None:
        """Write an output to the memory of the client; all is there when this returns.

        Raises:
            ServerError: There is no room for it, or the region cannot be opened or written.
        """
        size = array.nbytes
        if size > place.size:
            raise InternalError(
                f"shared memory size specified with the request for output '{output}' "
                f"({place.size} bytes) should be at least {size} bytes to hold the results"
            )
        region = self._open(place)
        target = region.address + place.offset
        driver = region.driver
        try:
            if isinstance(array, DeviceArray):
                with driver.using(array.device):
                    if array.order is Order.UNKNOWN:
                        driver.synchronize()  # what computes it may run on any stream
                    driver.copy_on_device(target, array.address, size)
                    driver.synchronize_default()  # such a copy goes on after the call
            else:
                with driver.using(region.device):
                    driver.copy_to_device(target, array.ctypes.data, size)
                    driver.synchronize_default()
        except CudaError as error:
            raise InternalError(
                f"failed to write to CUDA shared memory region '{place.region}': {error}"
            ) from error

    def drop(self, numbers: Collection[int]) -> list[OpenRegion]:
        """Forget regions; each is closed when nothing refers to it, such as what this returns."""
        with self._lock:
            dropped = [self._regions.pop(each) for each in numbers if each in self._regions]
            for number in numbers:
                self._lent.pop(number, None)
                self._dropped[number] = None
            while len(self._dropped) > MOST_DROPPED:
                del self._dropped[next(iter(self._dropped))]
        return dropped

    def _open(self, place: DevicePlace) -> OpenRegion:
        region = self._regions.get(place.number)
        if region is not None:
            return region
        with self._lock:
            region = self._regions.get(place.number)
            if region is None:
                region = OpenRegion(self._find_driver(), place)
                if place.number not in self._dropped:
                    self._regions[place.number] = region
        return region


class PlacedArray(DeviceArray):
    """An output whose bytes are in memory of the client already: the server gets none."""

    __slots__ = ()

    nbytes = 0  # whatever the shape is

    @classmethod
    def of(cls, array: DeviceArray | NDArray[Any]) -> PlacedArray:
        """Returns what is sent in place of an output that was written."""
        return cls(0, 0, array.dtype, array.shape, None)

    def tobytes(self) -> bytes:
        return b""
