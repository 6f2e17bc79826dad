# SPDX-License-Identifier: Apache-2.0
"""The regions of memory that clients have registered: names, limits, and Triton's errors.

This decides only; `serving.server.shared_memory.region_file` opens, reads and writes. A region
that was unregistered has no name any more, so no new request finds it; its file is closed when the
last request that uses it has dropped its reference. So no file is closed while it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from pytriton.base.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from pytriton.base.messages import DevicePlace
from pytriton.protocol.json_text import utf8
from pytriton.protocol.shared_memory import CUDA_HANDLE_BYTES
from pytriton.runtime.executor import device_regions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.shared_memory import RegionPlace

MAX_SIZE = 2**64 - 1  # the numbers of the protocol are unsigned and have 64 bits
_MAX_CUDA_SIZE = 2**63 - 1  # the length of a tensor is that of an object of Python
TRITON_PREFIX = "triton_python_backend_shm_region_"
# Memory of the Python backend, and of Python's and torch's own processes, is not for clients.
RESERVED_PREFIXES = (TRITON_PREFIX, "psm_", "sem.", "pymp-", "torch_")


class RegionFile(Protocol):
    """An open object of shared memory; it is closed when nothing refers to it any more."""

    @property
    def descriptor(self) -> int:
        """The file descriptor, by which another process of this server gets the object."""

    @property
    def size(self) -> int:
        """Its size now: another process may change it at any time."""

    def read_into(self, memory: memoryview, offset: int) -> int:
        """Read to fill `memory`; returns the number of bytes, fewer if the object ends before."""

    def write(self, data: Buffer, offset: int) -> None:
        """Write all bytes; raises OSError if there is no room."""


class Region:
    """A part of an object of shared memory that clients use by a name."""

    __slots__ = ("byte_size", "file", "key", "name", "offset")

    def __init__(self, name: str, key: str, offset: int, byte_size: int, file: RegionFile) -> None:
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self.file = file

    def __repr__(self) -> str:
        return f"<Region {self.name!r} offset={self.offset} byte_size={self.byte_size}>"


class DeviceRegion:
    """A region of GPU memory that clients use by a name. Only processes of models open it."""

    __slots__ = ("byte_size", "device", "handle", "name", "number")

    def __init__(self, name: str, number: int, handle: bytes, device: int, byte_size: int) -> None:
        self.name = name
        self.number = number
        self.handle = handle
        self.device = device
        self.byte_size = byte_size

    def place(self, offset: int, byte_size: int) -> DevicePlace:
        """Returns a part of the region, which was checked to be inside."""
        return DevicePlace(
            self.name, self.number, self.handle, self.device, self.byte_size, offset, byte_size
        )

    def __repr__(self) -> str:
        return f"<DeviceRegion {self.name!r} device={self.device} byte_size={self.byte_size}>"


_R = TypeVar("_R", Region, DeviceRegion)


class RegionSlice:
    """A part of a region that a request reads or writes; it keeps the region's file open."""

    __slots__ = ("_region", "_start", "byte_size")

    def __init__(self, region: Region, offset: int, byte_size: int) -> None:
        self._region = region
        self._start = region.offset + offset
        self.byte_size = byte_size

    def read_into(self, memory: memoryview) -> None:
        """Read all bytes into memory of this size; it is one copy.

        Raises:
            InvalidArgumentError: The client has made the object smaller.
        """
        count = self._region.file.read_into(memory, self._start)
        if count < self.byte_size:
            raise self._shrunk(count)

    def write(self, data: Buffer) -> None:
        """Write the beginning of the slice; it is one copy.

        Raises:
            InvalidArgumentError: The client has made the object smaller.
            InternalError: There is no memory for the object.
        """
        # A write beyond the end would make the object larger again, with memory of the server's
        # quota. If the client shrinks it after this check, that is all that happens.
        room = self._region.file.size - self._start
        if room < len(data):
            raise self._shrunk(max(room, 0))
        try:
            self._region.file.write(data, self._start)
        except OSError as error:
            raise InternalError(
                f"failed to write to shared memory region '{self._region.name}': {error.strerror}"
            ) from None

    def _shrunk(self, count: int) -> InvalidArgumentError:
        region = self._region
        return InvalidArgumentError(
            f"shared memory region '{region.name}' was made smaller after it was registered: "
            f"expected {self.byte_size} bytes at offset {self._start} of '{region.key}', "
            f"got {count}"
        )


class RegionTable:
    """The registered regions by name."""

    def __init__(self) -> None:
        self._regions: dict[str, Region | DeviceRegion] = {}
        self.epoch = 0  # how often it was changed

    def add(self, region: Region | DeviceRegion) -> None:
        self.epoch += 1
        self._regions[region.name] = region

    def remove(self, name: str) -> None:
        """Free a name. An unknown one is no error."""
        self.epoch += 1
        self._regions.pop(name, None)

    def system_regions(self, name: str = "") -> list[Region]:
        """Returns one region, or all without a name, sorted by name.

        Raises:
            NotFoundError: There is no region of this name.
        """
        found = [each for each in self._named(name, "system") if isinstance(each, Region)]
        if name and not found:
            raise NotFoundError(
                f"The region named '{name}' is registered as CUDA shared memory, not system shared "
                "memory"
            )
        return found

    def cuda_regions(self, name: str = "") -> list[DeviceRegion]:
        """Returns one region of GPU memory, or all without a name, sorted by name.

        Raises:
            NotFoundError: There is no region of this name.
        """
        found = [each for each in self._named(name, "cuda") if isinstance(each, DeviceRegion)]
        if name and not found:
            raise NotFoundError(
                f"The region named '{name}' is registered as system shared memory, not CUDA shared "
                "memory"
            )
        return found

    def all_regions(self) -> list[Region | DeviceRegion]:
        """Returns the regions of both kinds, sorted by name."""
        return [self._regions[each] for each in sorted(self._regions)]

    def _named(self, name: str, kind: str) -> list[Region | DeviceRegion]:
        if not name:
            return self.all_regions()
        if name not in self._regions:
            raise NotFoundError(f"Unable to find {kind} shared memory region: '{name}'")
        return [self._regions[name]]

    def check_new(self, name: str) -> None:
        """Refuse a name that is in use; both kinds of memory share the names.

        Raises:
            AlreadyExistsError: It is in use.
        """
        if name in self._regions:
            raise AlreadyExistsError(f"shared memory region '{name}' already in manager")

    def is_device(self, name: str) -> bool:
        """Returns whether a region is of GPU memory."""
        return type(self._regions.get(name)) is DeviceRegion

    def find(self, place: RegionPlace) -> RegionSlice | DevicePlace:
        """Returns the part of a region that a tensor's parameters name.

        Raises:
            NotFoundError: There is no region of this name.
            InvalidArgumentError: The part is not inside the region.
        """
        region = self._regions.get(place.region)
        if region is None:
            raise NotFoundError(f"Unable to find shared memory region: '{place.region}'")
        offset, byte_size = place.offset, place.byte_size
        if offset >= region.byte_size:
            raise InvalidArgumentError(f"Invalid offset for shared memory region: '{place.region}'")
        if offset + byte_size > MAX_SIZE:
            raise InvalidArgumentError(
                f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds "
                f"maximum value ({MAX_SIZE}) for region '{place.region}'"
            )
        # Triton computes the index of the last byte, so nothing at the beginning has none.
        if offset + byte_size > region.byte_size or not (offset or byte_size):
            raise InvalidArgumentError(
                f"Invalid offset + byte size for shared memory region: '{place.region}'"
            )
        if isinstance(region, DeviceRegion):
            return region.place(offset, byte_size)
        return RegionSlice(region, offset, byte_size)

    def __len__(self) -> int:
        return len(self._regions)


class Regions(RegionTable):
    """The regions of a server, where clients register them.

    `open_file` opens an object by its key without leading slashes. Each region needs a descriptor.
    `find_devices` returns the numbers of the GPUs that models may use.
    """

    def __init__(
        self,
        open_file: Callable[[str], RegionFile],
        max_count: int,
        find_devices: Callable[[], Collection[int]] = tuple,
    ) -> None:
        super().__init__()
        self._open_file = open_file
        self._max_count = max_count
        self._find_devices = find_devices
        # Called with the regions that were added and the names that were removed.
        self.on_changed: Callable[[Iterable[Region | DeviceRegion], Iterable[str]], None]
        self.on_changed = _do_nothing

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a region.

        Raises:
            ServerError: The name, the key or the numbers are wrong, or the object cannot be opened.
        """
        if not name:
            raise InvalidArgumentError(
                "'region name' is necessary to register system shared memory region"
            )
        utf8(name, "region name")  # paths may have any bytes, but front ends and clients hear of it
        self.check_new(name)
        object_name = check_key(name, key)
        self._check_count(name)
        try:
            file = self._open_file(object_name)
            size = file.size
        except OSError:
            raise InternalError(f"Unable to open shared memory region: '{key}'") from None
        if not byte_size or offset + byte_size > size:
            raise InvalidArgumentError(
                f"failed to register shared memory region '{name}': invalid args"
            )
        region = Region(name, key, offset, byte_size, file)
        self.add(region)
        self.on_changed((region,), ())

    def register_cuda(self, name: str, handle: bytes, device: int, byte_size: int) -> None:
        """Register a region of GPU memory. Whether its handle is good shows with its first use.

        Raises:
            ServerError: The name, the device or the size is wrong, or there is no GPU.
        """
        utf8(name, "region name")
        self.check_new(name)
        devices = self._find_devices()
        if not devices:
            raise InvalidArgumentError(
                f"failed to register CUDA shared memory region: '{name}', GPUs not supported"
            )
        if not name:
            raise InvalidArgumentError(
                "'region name' is necessary to register cuda shared memory region"
            )
        if len(handle) != CUDA_HANDLE_BYTES:
            raise InvalidArgumentError(
                f"failed to register CUDA shared memory region: '{name}', expected a handle of "
                f"{CUDA_HANDLE_BYTES} bytes, got {len(handle)}"
            )
        if device not in devices:
            raise InvalidArgumentError(
                f"failed to register CUDA shared memory region: '{name}', expected one of the "
                f"devices {sorted(devices)}, got {device}"
            )
        if not 0 < byte_size <= _MAX_CUDA_SIZE:
            raise InvalidArgumentError(
                f"failed to register shared memory region '{name}': invalid args"
            )
        self._check_count(name)
        region = DeviceRegion(name, device_regions.add_region(), handle, device, byte_size)
        self.add(region)
        self.on_changed((region,), ())

    def unregister(self, name: str = "") -> None:
        """Unregister a region, or all without a name; an unknown one is no error.

        Requests that use it finish as usual.
        """
        self._unregister(name, Region)

    def unregister_cuda(self, name: str = "") -> None:
        """Like `unregister`, for GPU memory. Requests that are not running yet will fail."""
        for removed in self._unregister(name, DeviceRegion):
            device_regions.remove_region(removed.number)

    def _unregister(self, name: str, kind: type[_R]) -> list[_R]:
        named = [self._regions.get(name)] if name else list(self._regions.values())
        removed = [each for each in named if isinstance(each, kind)]
        for each in removed:
            self.remove(each.name)
        if removed:
            self.on_changed((), [each.name for each in removed])
        return removed

    def _check_count(self, name: str) -> None:
        if len(self) >= self._max_count:
            raise UnavailableError(
                f"cannot register shared memory region '{name}': {len(self)} regions are "
                "registered already, and the file descriptors of the server allow no more"
            )


def check_key(name: str, key: str) -> str:
    """Check the key of a region; returns the name of the object, without leading slashes.

    Raises:
        ServerError: The key is not the name of an object that clients may use.
    """
    object_name = key.lstrip("/")
    if key and not object_name:
        raise InvalidArgumentError(
            f"cannot register shared memory region '{name}' - invalid shm key '{key}'"
        )
    for prefix in RESERVED_PREFIXES:
        if object_name.startswith(prefix):
            raise InvalidArgumentError(
                f"cannot register shared memory region '{name}' with key '{key}' as the key "
                f"contains the reserved prefix '{prefix}'"
            )
    if not object_name or object_name in (".", "..") or "/" in object_name or "\0" in object_name:
        raise InternalError(f"Unable to open shared memory region: '{key}'")
    return object_name


def _do_nothing(*_: object) -> None:
    """Report no change: nobody has asked for it."""
