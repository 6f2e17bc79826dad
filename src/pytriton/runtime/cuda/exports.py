# SPDX-License-Identifier: Apache-2.0
"""Tensors in GPU memory of this process that others read: kept until the server releases them.

What crosses is the handle of the whole allocation, and where in it the tensor is. An allocation is
exported once: those of torch and cupy hold many tensors. Its number is the driver's, which is never
used again, so that memory that was freed and allocated anew is not mistaken for what was there.
"""

from __future__ import annotations

import itertools
import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.device_copies import CopyReason
from pytriton.base.errors import ServerError
from pytriton.base.messages import DeviceExport
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.device_array import usable_driver, wait_for_device
from pytriton.runtime.cuda.driver import CudaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytriton.runtime.cuda.device_array import DeviceArray
    from pytriton.runtime.cuda.driver import Driver

logger = logging.getLogger(__name__)


class NotShareableError(Exception):
    """A tensor has to go through the host; `reason` is a `CopyReason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Allocation(NamedTuple):
    base: int
    size: int
    device: int
    handle: bytes  # empty: it cannot be exported


class Kept(NamedTuple):
    """An array that was exported, and where its allocation begins."""

    array: DeviceArray
    base: int


class Exports:
    """The tensors that this process has exported, by number, and their allocations.

    Used by threads that send, and by the one that reads what the server says. `on_gone` is called
    with the numbers of allocations that others may have open, and that were found to be freed.
    """

    def __init__(
        self,
        find_driver: Callable[[], Driver] = usable_driver,
        on_gone: Callable[[list[int]], None] = lambda _: None,
    ) -> None:
        self._find_driver = find_driver
        self._on_gone = on_gone
        self._numbers = itertools.count(1)
        self._kept: dict[int, Kept] = {}
        self._allocations: dict[int, _Allocation] = {}
        self._gpus: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, array: DeviceArray, gpu: bytes = b"") -> DeviceExport:
        """Keep an array for others, who may be only on a certain device; returns what they need.

        Its bytes are there when this returns, so whoever hears of it may read it on any stream.

        Raises:
            NotShareableError: It cannot be shared.
        """
        gone: list[int] = []
        try:
            driver = self._find_driver()
            wait_for_device(array)
            own = self._gpus.get(array.device)
            if own is None:
                own = self._gpus[array.device] = driver.uuid_of(array.device)
            if gpu not in (b"", own):
                raise NotShareableError(CopyReason.OTHER_DEVICE)
            with self._lock, driver.using(array.device):
                number, allocation = self._find(driver, array, gone)
        except (CudaError, ServerError) as error:
            raise NotShareableError(CopyReason.DRIVER_ERROR) from error
        finally:
            if gone:  # also if the array cannot be shared: these are not found again
                self._on_gone(gone)
        offset = array.address - allocation.base
        if not allocation.handle or offset + array.nbytes > allocation.size:
            raise NotShareableError(CopyReason.CANNOT_EXPORT)
        block = next(self._numbers)
        self._kept[block] = Kept(array, allocation.base)
        return DeviceExport(
            block,
            array.nbytes,
            offset,
            number,
            allocation.handle,
            own,
            array.device,
            allocation.size,
        )

    def kept(self, block: int) -> Kept | None:
        """Returns an array that this process has exported; None if it was released."""
        return self._kept.get(block)

    def release(self, blocks: Iterable[int]) -> list[Kept]:
        """Forget arrays that nobody reads any more; each ends with what this returns."""
        found = [self._kept.pop(block, None) for block in blocks]
        return [each for each in found if each is not None]

    def _find(self, driver: Driver, array: DeviceArray, gone: list[int]) -> tuple[int, _Allocation]:
        """Returns the allocation of an array; those that were found to be freed go to `gone`."""
        number = driver.allocation_id(array.address)
        allocation = self._allocations.get(number)
        if allocation is not None:
            return number, allocation
        base, size = driver.extent_of(array.address)
        gone += self._forget_freed(driver)
        try:
            handle = driver.export_memory(base)
        except CudaError as error:
            if error.code in cuda_driver.KERNEL_ERRORS:
                raise
            logger.info("%d bytes of GPU memory cannot be shared with others: %s", size, error)
            handle = b""
        allocation = self._allocations[number] = _Allocation(base, size, array.device, handle)
        return number, allocation

    def _forget_freed(self, driver: Driver) -> list[int]:
        """Forget allocations that are not there any more; returns those that others may have open.

        Done with each new one: torch frees what it has cached before it asks for more.
        """
        gone = []
        for number, allocation in list(self._allocations.items()):
            try:
                is_there = driver.allocation_id(allocation.base) == number
            except CudaError:
                is_there = False
            if not is_there:
                del self._allocations[number]
                if allocation.handle:
                    gone.append(number)
        return gone
