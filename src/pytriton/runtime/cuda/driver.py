# SPDX-License-Identifier: Apache-2.0
"""The calls of CUDA's driver that memory needs, by ctypes, each with a typed error.

`find_loaded` gives the driver of a process that uses CUDA already, and loads and initialises
nothing. `load` is for a process that has got a tensor in GPU memory, and so has to use it. A
primary context is the one that torch, jax, cupy and the CUDA runtime use, too. CUDA does not
survive a fork: a child gets errors here, unless nothing was initialised before.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Any, Protocol

from pytriton.base import device_copies

if TYPE_CHECKING:
    import contextlib

LIBRARY = "libcuda.so.1"
HANDLE_BYTES = 64

# Codes of <cuda.h>.
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
DEINITIALIZED = 4
NO_DEVICE = 100
INVALID_CONTEXT = 201
NOT_FOUND = 500
ILLEGAL_ADDRESS = 700
LAUNCH_TIMEOUT = 702
CONTEXT_IS_DESTROYED = 709
ASSERT = 710
HOST_MEMORY_ALREADY_REGISTERED = 712
HOST_MEMORY_NOT_REGISTERED = 713
HARDWARE_STACK_ERROR = 714
ILLEGAL_INSTRUCTION = 715
MISALIGNED_ADDRESS = 716
INVALID_ADDRESS_SPACE = 717
INVALID_PC = 718
LAUNCH_FAILED = 719
# The GPU failed at what it was asked for: all later calls of the process give the same error.
KERNEL_ERRORS = frozenset(
    {
        ILLEGAL_ADDRESS,
        LAUNCH_TIMEOUT,
        ASSERT,
        HARDWARE_STACK_ERROR,
        ILLEGAL_INSTRUCTION,
        MISALIGNED_ADDRESS,
        INVALID_ADDRESS_SPACE,
        INVALID_PC,
        LAUNCH_FAILED,
    }
)

_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: for all contexts of the process
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag that there is
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_POINTER_BUFFER_ID = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID
_POINTER_DEVICE = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_LEGACY_STREAM = 1  # CU_STREAM_LEGACY, the default stream of a context
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_UUID_BYTES = 16

_INT, _UINT, _SIZE = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_ADDRESS, _POINTER, _TEXT = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p


class IpcHandle(ctypes.Structure):
    """`CUipcMemHandle`, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


# The parameters of each function; pointers to results are given as void pointers.
_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UINT,),
    "cuGetErrorName": (_INT, _POINTER),
    "cuDeviceGetCount": (_POINTER,),
    "cuDeviceGet": (_POINTER, _INT),
    "cuDeviceGetUuid": (_POINTER, _INT),
    "cuDeviceGetUuid_v2": (_POINTER, _INT),
    "cuDevicePrimaryCtxGetState": (_INT, _POINTER, _POINTER),
    "cuDevicePrimaryCtxRetain": (_POINTER, _INT),
    "cuDevicePrimaryCtxRelease_v2": (_INT,),
    "cuCtxPushCurrent_v2": (_POINTER,),
    "cuCtxPopCurrent_v2": (_POINTER,),
    "cuCtxSetCurrent": (_POINTER,),
    "cuCtxGetCurrent": (_POINTER,),
    "cuCtxSynchronize": (),
    "cuStreamSynchronize": (_POINTER,),
    "cuStreamWaitEvent": (_POINTER, _POINTER, _UINT),
    "cuEventCreate": (_POINTER, _UINT),
    "cuEventRecord": (_POINTER, _POINTER),
    "cuEventDestroy_v2": (_POINTER,),
    "cuThreadExchangeStreamCaptureMode": (_POINTER,),
    "cuMemHostRegister_v2": (_POINTER, _SIZE, _UINT),
    "cuMemHostUnregister": (_POINTER,),
    "cuMemcpyDtoH_v2": (_POINTER, _ADDRESS, _SIZE),
    "cuMemcpyHtoD_v2": (_ADDRESS, _POINTER, _SIZE),
    "cuMemcpyDtoD_v2": (_ADDRESS, _ADDRESS, _SIZE),
    "cuMemAlloc_v2": (_POINTER, _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemGetAddressRange_v2": (_POINTER, _POINTER, _ADDRESS),
    "cuPointerGetAttribute": (_POINTER, _INT, _ADDRESS),
    "cuIpcGetMemHandle": (_POINTER, _ADDRESS),
    "cuIpcOpenMemHandle_v2": (_POINTER, IpcHandle, _UINT),
    "cuIpcCloseMemHandle": (_ADDRESS,),
}


class CudaError(Exception):
    """A call of CUDA's driver failed; nothing was changed by it.

    Attributes:
        call: The name of the driver's function.
        code: The driver's number of the error.
    """

    def __init__(self, call: str, code: int, name: str = "") -> None:
        named = f"{code} ({name})" if name else str(code)
        super().__init__(f"CUDA's driver failed at {call} with error {named}")
        self.call = call
        self.code = code


class Driver(Protocol):
    """CUDA's driver in this process. Every method may raise `CudaError`.

    Methods that work on memory need `using` around them, on the same thread.
    """

    def active_devices(self) -> list[int]:
        """Returns the devices whose primary context is in use; makes none active."""

    def using(self, device: int) -> contextlib.AbstractContextManager[None]:
        """Make the primary context of a device current, and restore the former one at the end."""

    def make_current(self, device: int) -> None:
        """Make the primary context of a device current on this thread, until the thread's end."""

    def uuid_of(self, device: int) -> bytes:
        """Returns what a device, or a part of one, is known by in every process."""

    def device_with(self, uuid: bytes) -> int:
        """Returns the device that `uuid_of` gives this for; an error if this process has none."""

    def retain_context(self, device: int) -> None:
        """Keep the primary context of a device until `release_context`, even if nothing else does.

        What was opened or registered in a context ends with it.
        """

    def release_context(self, device: int) -> None:
        """Undo one `retain_context`."""

    def allow_captures(self) -> None:
        """Let other threads capture graphs while this thread calls the driver."""

    def synchronize(self) -> None:
        """Wait for all work that was submitted in the current context."""

    def synchronize_default(self) -> None:
        """Wait for what the default stream of the current context was asked for."""

    def order_after_default(self, stream: int) -> None:
        """Let a stream wait for the default stream; this thread does not wait."""

    def drain(self, page: int) -> None:
        """Wait like `synchronize`, without spoiling a graph that another thread captures.

        `page` is a page of host memory that nothing else registers.
        """

    def register_host(self, address: int, size: int) -> None:
        """Pin host memory, so that the device reads and writes it directly."""

    def unregister_host(self, address: int) -> None:
        """Undo `register_host`."""

    def copy_to_host(self, target: int, source: int, size: int) -> None:
        """Copy device memory to the host; all bytes are there when this returns."""

    def copy_to_device(self, target: int, source: int, size: int) -> None:
        """Copy host memory to the device; `source` was read when this returns."""

    def copy_on_device(self, target: int, source: int, size: int) -> None:
        """Copy memory of any devices, in order with other work of the default stream.

        It may go on after this has returned.
        """

    def allocate(self, size: int) -> int:
        """Allocate device memory; returns its address."""

    def free(self, address: int) -> None:
        """Free what `allocate` returned."""

    def extent_of(self, address: int) -> tuple[int, int]:
        """Returns address and size of the allocation that an address is in."""

    def allocation_id(self, address: int) -> int:
        """Returns a number of an allocation that no other of this process has or had."""

    def device_of(self, address: int) -> int:
        """Returns the device whose memory an address is in."""

    def export_memory(self, address: int) -> bytes:
        """Returns a handle of an allocation, by which other processes open it."""

    def open_memory(self, handle: bytes) -> int:
        """Map an allocation of another process; returns its address here."""

    def close_memory(self, address: int) -> None:
        """Undo `open_memory`."""


class LibraryDriver:
    """The driver in a library that is loaded. See `Driver`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._functions: dict[str, Any] = {}
        self._handles: dict[int, int] = {}  # of devices, by their numbers
        self._contexts: dict[int, int | None] = {}  # the primary ones seen last, by those handles

    def initialize(self) -> None:
        """Initialise CUDA in this process, unless that was done before."""
        self._call("cuInit", 0)

    def active_devices(self) -> list[int]:
        count, flags, is_active = _INT(), _UINT(), _INT()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        active = []
        for number in range(count.value):
            device = self._device(number)
            references = (ctypes.byref(flags), ctypes.byref(is_active))
            self._call("cuDevicePrimaryCtxGetState", device, *references)
            if is_active.value:
                active.append(number)
        return active

    def using(self, device: int) -> contextlib.AbstractContextManager[None]:
        return _CurrentContext(self, self._device(device))

    def push_context(self, handle: int) -> bool:
        """Make the primary context of a device current; returns whether it was not yet.

        If so, `pop_context` undoes it.
        """
        context = _POINTER()
        known = self._contexts.get(handle)
        if known is not None:  # on threads that use CUDA themselves, it usually is
            self._call("cuCtxGetCurrent", ctypes.byref(context))
            if context.value == known:
                return False
        # Retained each time: a program may reset its device, which ends the context.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        try:
            self._call("cuCtxPushCurrent_v2", context)
        except BaseException:
            self._function("cuDevicePrimaryCtxRelease_v2")(handle)
            raise
        self._contexts[handle] = context.value
        return True

    def pop_context(self, handle: int) -> None:
        """Restore the context that was current before. What fails here has failed before."""
        self._function("cuCtxPopCurrent_v2")(ctypes.byref(_POINTER()))
        self._function("cuDevicePrimaryCtxRelease_v2")(handle)

    def make_current(self, device: int) -> None:
        context = _POINTER()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(device))
        self._call("cuCtxSetCurrent", context)

    def uuid_of(self, device: int) -> bytes:
        uuid = (ctypes.c_ubyte * _UUID_BYTES)()
        # The newer one distinguishes the parts of a device that is split (MIG).
        newer = hasattr(self._library, "cuDeviceGetUuid_v2")
        name = "cuDeviceGetUuid_v2" if newer else "cuDeviceGetUuid"
        self._call(name, ctypes.byref(uuid), self._device(device))
        return bytes(uuid)

    def device_with(self, uuid: bytes) -> int:
        count = _INT()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        for number in range(count.value):
            if self.uuid_of(number) == uuid:
                return number
        raise CudaError("cuDeviceGetUuid", NO_DEVICE, "the device is not visible here")

    def retain_context(self, device: int) -> None:
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(_POINTER()), self._device(device))

    def release_context(self, device: int) -> None:
        self._call("cuDevicePrimaryCtxRelease_v2", self._device(device))

    def allow_captures(self) -> None:
        mode = _INT(_RELAXED)
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    def synchronize_default(self) -> None:
        self._call("cuStreamSynchronize", _LEGACY_STREAM)

    def order_after_default(self, stream: int) -> None:
        event = _POINTER()
        self._call("cuEventCreate", ctypes.byref(event), _NO_TIMING)
        try:
            self._call("cuEventRecord", event, _LEGACY_STREAM)
            self._call("cuStreamWaitEvent", stream, event, 0)
        finally:  # the driver keeps it until it is not waited for any more
            self._function("cuEventDestroy_v2")(event)

    def drain(self, page: int) -> None:
        # While a graph is captured, cuCtxSynchronize fails, and the capture with it, whatever the
        # mode of the thread is. Unregistering is allowed, and has to wait for what may use the
        # memory: for all work of the context, of streams that do not block as well. That takes
        # 0.1 ms if there is none. Seen with driver 580.
        self.register_host(page, mmap.PAGESIZE)
        self.unregister_host(page)

    def register_host(self, address: int, size: int) -> None:
        self._call("cuMemHostRegister_v2", address, size, _PORTABLE)

    def unregister_host(self, address: int) -> None:
        self._call("cuMemHostUnregister", address)

    def copy_to_host(self, target: int, source: int, size: int) -> None:
        self._call("cuMemcpyDtoH_v2", target, source, size)
        device_copies.add_to_host(size)

    def copy_to_device(self, target: int, source: int, size: int) -> None:
        self._call("cuMemcpyHtoD_v2", target, source, size)
        device_copies.add_to_gpu(size)

    def copy_on_device(self, target: int, source: int, size: int) -> None:
        # Not cuMemcpy: that takes an address that is not mapped for one of the host, and crashes.
        self._call("cuMemcpyDtoD_v2", target, source, size)

    def allocate(self, size: int) -> int:
        address = _ADDRESS()
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", address)

    def extent_of(self, address: int) -> tuple[int, int]:
        base, size = _ADDRESS(), _SIZE()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
        return base.value, size.value

    def allocation_id(self, address: int) -> int:
        number = ctypes.c_uint64()
        self._call("cuPointerGetAttribute", ctypes.byref(number), _POINTER_BUFFER_ID, address)
        return number.value

    def device_of(self, address: int) -> int:
        device = _INT()
        self._call("cuPointerGetAttribute", ctypes.byref(device), _POINTER_DEVICE, address)
        return device.value

    def export_memory(self, address: int) -> bytes:
        handle = IpcHandle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), address)
        return bytes(handle)

    def open_memory(self, handle: bytes) -> int:
        if len(handle) != HANDLE_BYTES:
            raise ValueError(f"expected a handle of {HANDLE_BYTES} bytes, got {len(handle)}")
        address = _ADDRESS()
        record = IpcHandle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), record, _LAZY_PEER_ACCESS)
        return address.value

    def close_memory(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", address)

    def _device(self, number: int) -> int:
        handle = self._handles.get(number)
        if handle is None:
            device = _INT()
            self._call("cuDeviceGet", ctypes.byref(device), number)
            handle = self._handles[number] = device.value
        return handle

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._function(name)(*arguments)
        if code:
            raise CudaError(name, code, self._name_of(code))

    def _function(self, name: str) -> Any:
        function = self._functions.get(name)
        if function is None:
            try:
                function = getattr(self._library, name)
            except AttributeError:  # an old driver
                raise CudaError(name, NOT_FOUND, "the driver does not have it") from None
            function.argtypes = _PARAMETERS[name]
            function.restype = _INT
            self._functions[name] = function
        return function

    def _name_of(self, code: int) -> str:
        text = _TEXT()
        try:
            failed = self._function("cuGetErrorName")(code, ctypes.byref(text))
        except CudaError:
            return ""
        return "" if failed or text.value is None else text.value.decode("ascii", "replace")


class _CurrentContext:
    """A context that is current inside of a `with` statement.

    It is used with each tensor, and takes half as long as a generator would.
    """

    __slots__ = ("_driver", "_handle", "_is_pushed")

    def __init__(self, driver: LibraryDriver, handle: int) -> None:
        self._driver = driver
        self._handle = handle

    def __enter__(self) -> None:
        self._is_pushed = self._driver.push_context(self._handle)

    def __exit__(self, *_: object) -> None:
        if self._is_pushed:
            self._driver.pop_context(self._handle)


def find_loaded() -> Driver | None:
    """Returns the driver if something in this process has loaded its library; loads nothing.

    It takes about 50 us where the library is not loaded.
    """
    no_load = getattr(os, "RTLD_NOLOAD", None)
    if no_load is None:
        return None
    try:
        return LibraryDriver(ctypes.CDLL(LIBRARY, mode=no_load | os.RTLD_NOW))
    except OSError:
        return None


_initialized: list[LibraryDriver] = []  # at most one


def load() -> Driver:
    """Load and initialise the driver.

    Raises:
        OSError: There is no driver.
        CudaError: It cannot be initialised: there is no GPU, or a process was forked that used it.
    """
    if not _initialized:
        driver = LibraryDriver(ctypes.CDLL(LIBRARY))
        driver.initialize()
        _initialized.append(driver)
    return _initialized[0]


os.register_at_fork(after_in_child=_initialized.clear)
