# SPDX-License-Identifier: Apache-2.0
"""Loads a stub of `libtritonserver.so` into this process, with our functions behind it.

glibc does not search for a library that another one needs if one of that name is loaded already.
So a compiled backend that is loaded after the stub is connected to it, wherever it was linked to.

The stub is written here byte by byte, because backends are served on machines without a compiler,
such as our own image: headers, symbols, one jump for each function through its slot of a table, and
the table, whose slots are filled once it is loaded. Programs in C, which are compiled anyway, link
with another library, see `pytriton.inprocess.c_library`. Only 64-bit little-endian ELF is known.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytriton.base.errors import UnsupportedError
from pytriton.runtime.native_backend.callbacks import Callbacks

SLOTS_SYMBOL = "pytriton_slots"

_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_EXECUTE, _WRITE, _READ = 1, 2, 4
_DT_NULL, _DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB = 0, 1, 4, 5, 6
_DT_STRSZ, _DT_SYMENT, _DT_SONAME, _DT_GNU_HASH = 10, 11, 14, 0x6FFFFEF5
_FUNCTION, _OBJECT = 0x12, 0x11  # st_info of a global symbol
_IDENT = b"\x7fELF\x02\x01"  # 64 bits, little endian
_HEADER, _SEGMENT = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
_SYMBOL, _TAG = struct.Struct("<IBBHQQ"), struct.Struct("<QQ")
_SHARED_OBJECT = 3


def _jump_x86_64(at: int, slot: int) -> bytes:
    """Returns `endbr64; jmp *slot(%rip)`."""
    return b"\xf3\x0f\x1e\xfa\xff\x25" + struct.pack("<i", slot - (at + 10))


def _jump_aarch64(at: int, slot: int) -> bytes:
    """Returns `bti c; adrp x16, slot; ldr x17, [x16, #slot & 0xfff]; br x17`."""
    pages = (slot >> 12) - ((at + 4) >> 12)
    adrp = 0x90000010 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    load = 0xF9400211 | (slot & 0xFFF) >> 3 << 10
    return struct.pack("<4I", 0xD503245F, adrp, load, 0xD61F0220)


@dataclass(frozen=True)
class Processor:
    """A kind of processor."""

    name: str  # as `os.uname` has it
    number: int  # e_machine
    page_bytes: int  # the largest pages that its kernels use
    jump: Callable[[int, int], bytes]  # machine code at an address that jumps through a slot


MACHINES = {
    "x86_64": Processor("x86_64", 62, 0x1000, _jump_x86_64),
    "aarch64": Processor("aarch64", 183, 0x10000, _jump_aarch64),
}


class NotALibraryError(ValueError):
    """A file is not a shared library that can be read here; the text says why."""


def stub_library(
    soname: str,
    functions: Sequence[str],
    machine: Processor,
    code: Mapping[str, bytes] | None = None,
) -> bytes:
    """Returns the bytes of a library that exports `functions`, and a slot for each, in order.

    Args:
        soname: The name by which other libraries need it.
        functions: The names to export.
        machine: The processor for which it is.
        code: Machine code to place before the jump of some functions. It returns by itself, or
            falls through to the jump.
    """
    return _Stub(soname, functions, machine, code or {}).image()


class _Stub:
    """The layout of a stub library.

    One segment can be read and executed: headers, hash table, symbols, strings, code. Another can
    be written: the dynamic table and the slots.
    """

    def __init__(
        self, soname: str, functions: Sequence[str], machine: Processor, code: Mapping[str, bytes]
    ) -> None:
        self._machine = machine
        names = [each.encode() for each in (*functions, SLOTS_SYMBOL)]
        self._strings = b"\0" + b"".join(name + b"\0" for name in (*names, soname.encode()))
        self._name_offsets = _offsets([len(name) + 1 for name in (*names, b"")], start=1)
        self._hashes = _hash_table(names)
        self._code = [code.get(each, b"") for each in functions]
        self._hash_at = _aligned(_HEADER.size + 4 * _SEGMENT.size, 8)
        self._symbols_at = _aligned(self._hash_at + len(self._hashes), 8)
        self._strings_at = self._symbols_at + _SYMBOL.size * (len(names) + 1)
        code_at = _aligned(self._strings_at + len(self._strings), 16)
        sizes = [_aligned(len(each) + 16, 16) for each in self._code]
        self._code_offsets = _offsets(sizes, start=code_at)
        self._code_end = code_at + sum(sizes)
        self._tags = [
            (_DT_SONAME, self._name_offsets[-1]),
            (_DT_HASH, self._hash_at),
            (_DT_STRTAB, self._strings_at),
            (_DT_SYMTAB, self._symbols_at),
            (_DT_STRSZ, len(self._strings)),
            (_DT_SYMENT, _SYMBOL.size),
            (_DT_NULL, 0),
        ]
        self._dynamic_at = _aligned(self._code_end, machine.page_bytes)
        self._slots_at = self._dynamic_at + _TAG.size * len(self._tags)
        self._end = self._slots_at + 8 * len(functions)

    def image(self) -> bytes:
        image = bytearray(self._end)
        self._write_headers(image)
        for at, part in ((self._hash_at, self._hashes), (self._strings_at, self._strings)):
            image[at : at + len(part)] = part
        self._write_symbols(image)
        for index, (at, before) in enumerate(zip(self._code_offsets, self._code, strict=True)):
            code = before + self._machine.jump(at + len(before), self._slots_at + 8 * index)
            image[at : at + len(code)] = code
        for index, tag in enumerate(self._tags):
            _TAG.pack_into(image, self._dynamic_at + _TAG.size * index, *tag)
        return bytes(image)

    def _write_headers(self, image: bytearray) -> None:
        page, dynamic_at = self._machine.page_bytes, self._dynamic_at
        segments = [
            (_PT_LOAD, _READ | _EXECUTE, 0, self._code_end, page),
            (_PT_LOAD, _READ | _WRITE, dynamic_at, self._end - dynamic_at, page),
            (_PT_DYNAMIC, _READ | _WRITE, dynamic_at, _TAG.size * len(self._tags), 8),
            # Without this the loader asks for an executable stack.
            (_PT_GNU_STACK, _READ | _WRITE, 0, 0, 16),
        ]
        _HEADER.pack_into(
            image, 0, _IDENT + b"\x01", _SHARED_OBJECT, self._machine.number, 1, 0, _HEADER.size,
            0, 0, _HEADER.size, _SEGMENT.size, len(segments), 0, 0, 0,
        )  # fmt: skip
        for index, (kind, flags, at, size, alignment) in enumerate(segments):
            offset = _HEADER.size + _SEGMENT.size * index
            _SEGMENT.pack_into(image, offset, kind, flags, at, at, at, size, size, alignment)

    def _write_symbols(self, image: bytearray) -> None:
        symbols = [(_FUNCTION, at, 16) for at in self._code_offsets]
        symbols.append((_OBJECT, self._slots_at, 8 * len(self._code)))
        for index, (info, value, size) in enumerate(symbols):
            at = self._symbols_at + _SYMBOL.size * (index + 1)
            # There are no sections; any section number means that the symbol is defined.
            _SYMBOL.pack_into(image, at, self._name_offsets[index], info, 0, 1, value, size)


def _aligned(offset: int, to: int) -> int:
    return -(-offset // to) * to


def _offsets(sizes: Sequence[int], start: int) -> list[int]:
    offsets, at = [], start
    for size in sizes:
        offsets.append(at)
        at += size
    return offsets


def _hash_table(names: Sequence[bytes]) -> bytes:
    """Returns the table DT_HASH, which all loaders read. Symbol 0 is the null symbol."""
    buckets = [0] * max(1, len(names) // 2)
    chain = [0] * (len(names) + 1)
    for index, name in enumerate(names, 1):
        bucket = _hash(name) % len(buckets)
        chain[index], buckets[bucket] = buckets[bucket], index
    numbers = (len(buckets), len(chain), *buckets, *chain)
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _hash(name: bytes) -> int:
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


class Library:
    """What a shared library asks of the loader, read from its program headers.

    Raises:
        NotALibraryError: The file is something else.
        OSError: It cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._data = data = Path(path).read_bytes()
        if data[:6] != _IDENT:
            raise NotALibraryError(_describe_ident(data))
        try:
            self._read()
        except (struct.error, LookupError, OverflowError, StopIteration, ValueError) as error:
            raise NotALibraryError(f"its headers cannot be read: {error!r}") from error

    def _read(self) -> None:
        data = self._data
        self.machine_number: int = struct.unpack_from("<H", data, 18)[0]
        headers_at = struct.unpack_from("<Q", data, 32)[0]
        count = struct.unpack_from("<H", data, 56)[0]
        self._segments = [
            _SEGMENT.unpack_from(data, headers_at + index * _SEGMENT.size) for index in range(count)
        ]
        dynamic = next(each for each in self._segments if each[0] == _PT_DYNAMIC)
        self._tags = list(self._read_tags(dynamic[2], dynamic[5]))
        self._strings_at = self._offset(dict(self._tags)[_DT_STRTAB])
        self.needed = [self._string(value) for tag, value in self._tags if tag == _DT_NEEDED]
        self.undefined, self.defined = self._read_symbols()

    def _read_tags(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        for at in range(offset, offset + size, _TAG.size):
            tag, value = _TAG.unpack_from(self._data, at)
            if tag == _DT_NULL:
                return
            yield tag, value

    def _offset(self, address: int) -> int:
        """Returns where in the file the bytes of an address are."""
        for kind, _, offset, start, _, size, _, _ in self._segments:
            if kind == _PT_LOAD and start <= address < start + size:
                return int(offset + address - start)
        raise ValueError(f"no segment has the address {address:#x}")

    def _string(self, offset: int) -> str:
        start = self._strings_at + offset
        return self._data[start : self._data.index(b"\0", start)].decode()

    def _read_symbols(self) -> tuple[list[str], frozenset[str]]:
        """Returns the names of the symbols that others are to define, and of those defined here."""
        at = self._offset(dict(self._tags)[_DT_SYMTAB])
        undefined: list[str] = []
        defined: list[str] = []
        for index in range(1, self._symbol_count()):
            name, _, _, section, _, _ = _SYMBOL.unpack_from(self._data, at + _SYMBOL.size * index)
            (defined if section else undefined).append(self._string(name))
        return undefined, frozenset(defined)

    def _symbol_count(self) -> int:
        tags = dict(self._tags)
        if _DT_HASH in tags:
            return int(struct.unpack_from("<I", self._data, self._offset(tags[_DT_HASH]) + 4)[0])
        return self._count_gnu_symbols(self._offset(tags[_DT_GNU_HASH]))

    def _count_gnu_symbols(self, at: int) -> int:
        """Returns the number of symbols: the last chain of the GNU hash table ends with them."""
        unpack = functools.partial(struct.unpack_from, buffer=self._data)
        bucket_count, first, bloom_count, _ = unpack("<4I", offset=at)
        buckets_at = at + 16 + 8 * bloom_count
        last = max(unpack(f"<{bucket_count}I", offset=buckets_at), default=0)
        if last < first:
            return int(first)
        chains_at = buckets_at + 4 * bucket_count
        while not unpack("<I", offset=chains_at + 4 * (last - first))[0] & 1:
            last += 1
        return int(last + 1)


def _describe_ident(data: bytes) -> str:
    if data[:4] != _IDENT[:4]:
        return "it is not an ELF file"
    bits = {1: "32", 2: "64"}.get(data[4] if len(data) > 4 else 0, "unknown")
    order = {1: "little", 2: "big"}.get(data[5] if len(data) > 5 else 0, "unknown")
    return f"expected a 64-bit little-endian ELF file, got {bits}-bit {order}-endian"


_MFD_CLOEXEC = 1
_MFD_EXEC = 0x10  # since Linux 6.3; without it a kernel may be set up to warn or to refuse


def this_machine() -> Processor:
    """Returns the processor of this machine.

    Raises:
        UnsupportedError: Compiled backends do not run on this system; the text says why.
    """
    if sys.platform != "linux":
        raise UnsupportedError(
            f"compiled backends run on Linux only, and this is {platform.system() or sys.platform}"
        )
    name = os.uname().machine
    if name not in MACHINES:
        raise UnsupportedError(
            f"compiled backends run on {' and '.join(MACHINES)} only, and this machine is {name}"
        )
    if not _has_glibc():
        raise UnsupportedError(
            "compiled backends need a Python that uses the C library glibc, and this one does not"
        )
    return MACHINES[name]


def _has_glibc() -> bool:
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return False
    return bool(version) and str(version).startswith("glibc")


_loaded: list[object] = []  # kept: C code may call functions of stubs until the process ends


def load_stub(
    soname: str,
    functions: Sequence[str],
    callbacks: Callbacks,
    code: Mapping[str, bytes] | None = None,
    replaced: Mapping[str, int] | None = None,
) -> None:
    """Load a stub library, which stays loaded until the process ends.

    Args:
        soname: The name by which the backend needs it.
        functions: The names that it exports.
        callbacks: Makes the function for each name.
        code: Machine code that answers some calls without us, see `stub_library`.
        replaced: The addresses of functions of C that take the place of ours.
    """
    addresses = replaced or {}
    library = _load(stub_library(soname, functions, this_machine(), code), soname)
    slots = (ctypes.c_uint64 * len(functions)).in_dll(library, SLOTS_SYMBOL)
    for index, name in enumerate(functions):
        slots[index] = addresses.get(name) or callbacks.address(name)
    _loaded.extend((library, callbacks))


def _load(image: bytes, soname: str) -> ctypes.CDLL:
    # Libraries that were linked without naming this one find its functions only if it is global.
    try:
        descriptor = _memory_file(soname)
    except OSError:
        return _load_from_folder(image, soname)
    # The descriptor stays open: glibc recognises libraries by the path that they were loaded from,
    # and would take a later one with the same number for this one.
    os.write(descriptor, image)
    try:
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}", ctypes.RTLD_GLOBAL)
    except OSError:  # without /proc, or where memory files must not be executed
        os.close(descriptor)
        return _load_from_folder(image, soname)


def _memory_file(name: str) -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError("this Python was built without memfd_create")
    try:
        return os.memfd_create(name, _MFD_CLOEXEC | _MFD_EXEC)
    except OSError:
        return os.memfd_create(name, _MFD_CLOEXEC)


def _load_from_folder(image: bytes, soname: str) -> ctypes.CDLL:
    folder = tempfile.mkdtemp(prefix="pytriton-")
    try:
        path = Path(folder, soname)
        path.write_bytes(image)
        return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
