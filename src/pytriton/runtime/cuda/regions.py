# SPDX-License-Identifier: Apache-2.0
"""Regions of GPU memory of clients in the process of an instance: opened once, used, closed.

A region is opened with the first request that uses it, and kept. It is closed when the server says
that the client has unregistered it, and no tensor of a model is on it any more.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.cuda.device_array import DeviceArray, Order, usable_driver
from pytriton.runtime.cuda.driver import CudaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import NDArray

    from pytriton.base.messages import DevicePlace
    from pytriton.runtime.cuda.driver import Driver

logger = logging.getLogger(__name__)


class OpenRegion:
    """A region that this process has opened; it is closed when nothing refers to it any more."""

    __slots__ = ("_driver", "_has_context", "address", "device", "name")

    def __init__(self, driver: Driver, place: DevicePlace) -> None:
        self._driver = driver
        self.device = place.device
        self.name = place.region
        self.address = 0  # until it is open
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
            raise InvalidArgumentError(
                f"CUDA shared memory region '{place.region}' cannot be opened: {error}"
            ) from error
        # The client has said how large it is. Beyond its end, the GPU would fail for good.
        room = start + size - self.address
        if room < place.region_size:
            raise InvalidArgumentError(
                f"CUDA shared memory region '{place.region}' was registered with "
                f"{place.region_size} bytes, but its memory has {room}"
            )

    def __del__(self) -> None:
        try:
            if self.address:
                with self._driver.using(self.device):
                    self._driver.close_memory(self.address)
            if self._has_context:
                self._driver.release_context(self.device)
        except CudaError as error:
            logger.warning("CUDA shared memory region '%s' cannot be closed: %s", self.name, error)


class OpenRegions:
    """The regions that this process keeps open, by the numbers that the server gave them."""

    def __init__(self, find_driver: Callable[[], Driver] = usable_driver) -> None:
        self._find_driver = find_driver
        self._regions: dict[int, OpenRegion] = {}
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
        driver = self._find_driver()
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

    def drop(self, numbers: Iterable[int]) -> None:
        """Close regions, now or when the last tensor on them is gone."""
        with self._lock:
            dropped = [self._regions.pop(number, None) for number in numbers]
        del dropped  # outside of the lock: closing calls the driver

    def _open(self, place: DevicePlace) -> OpenRegion:
        with self._lock:
            region = self._regions.get(place.number)
            if region is None:
                region = self._regions[place.number] = OpenRegion(self._find_driver(), place)
        return region


class PlacedArray(DeviceArray):
    """An output whose bytes are in memory of the client already: the server gets none."""

    __slots__ = ()

    @classmethod
    def of(cls, array: DeviceArray | NDArray[Any]) -> PlacedArray:
        """Returns what is sent in place of an output that was written."""
        return cls(0, 0, array.dtype, array.shape, None)

    @property
    def nbytes(self) -> int:
        return 0

    def tobytes(self) -> bytes:
        return b""
