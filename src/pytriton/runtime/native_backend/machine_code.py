# SPDX-License-Identifier: Apache-2.0
"""Machine code for functions of the C API that only read or write a record, without Python.

It is placed before the jump to our function (see `stub.py`). Uncommon cases (NULL, an index that is
too large, an unknown name) fall through to that jump, so everything works without it, too. It takes
a third of the worker's CPU time: for the batches of a small identity backend, 33 us a request
instead of 48. Of the 14 calls for each request, 5 are left to Python, or to `plain_batches.c`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from pytriton.runtime.native_backend.records import (
    BACKEND_GETTERS,
    INPUT_WORDS,
    INSTANCE_GETTERS,
    MODEL_GETTERS,
    REQUEST_GETTERS,
    InputWord,
    RequestWord,
)

_VERBOSE = 3  # TRITONSERVER_LOG_VERBOSE
_ONE = None  # in place of a word: the constant 1


@dataclass(frozen=True)
class _RecordField:
    """Writes a word of the record, which is argument 0, to where another argument points."""

    argument: int
    word: int | None
    size: int
    is_optional: bool = False  # the argument may be NULL


def _properties(first: int) -> list[_RecordField]:
    """Returns what InputProperties writes, from its argument `first` on."""
    fields = [
        (InputWord.NAME, 8),
        (InputWord.DATATYPE, 4),
        (InputWord.SHAPE, 8),
        (InputWord.DIMS_COUNT, 4),
        (InputWord.SIZE, 8),
        (_ONE, 4),
    ]
    return [
        _RecordField(first + index, word, size, is_optional=True)
        for index, (word, size) in enumerate(fields)
    ]


def _buffer(first: int) -> list[_RecordField]:
    """Returns what InputBuffer writes, from its argument `first` on."""
    fields = [
        (InputWord.BUFFER, 8),
        (InputWord.SIZE, 8),
        (InputWord.MEMORY_TYPE, 4),
        (InputWord.MEMORY_ID, 8),
    ]
    return [_RecordField(first + index, word, size) for index, (word, size) in enumerate(fields)]


@dataclass(frozen=True)
class ProcessAddresses:
    """Addresses of tables and counters of this process that some functions use.

    Attributes:
        is_verbose: A word that is not 0 if the log has verbose lines.
        computed_ns: Two words for the times that a backend reports.
        datatype_names: A table with the name of each datatype.
        datatype_sizes: A table with the size of each datatype.
        datatype_count: The length of the tables.
    """

    is_verbose: int
    computed_ns: int
    datatype_names: int
    datatype_sizes: int
    datatype_count: int


def machine_code(machine: str, addresses: ProcessAddresses) -> dict[str, bytes]:
    """Returns the code for functions of the C API, for one kind of processor and this process."""
    make: _Processor = _X86() if machine == "x86_64" else _Arm()
    code: dict[str, bytes] = {}
    getters: Mapping[str, tuple[int, int]] = {
        **BACKEND_GETTERS,
        **MODEL_GETTERS,
        **INSTANCE_GETTERS,
        **REQUEST_GETTERS,
    }
    for name, (word, size) in getters.items():
        code[name] = make.fields([_RecordField(1, word, size)])
    code["TRITONBACKEND_InputProperties"] = make.fields(_properties(1))
    code["TRITONBACKEND_InputPropertiesForHostPolicy"] = make.fields(_properties(2))
    code["TRITONBACKEND_InputBuffer"] = make.fields(_buffer(2), index=1)
    code["TRITONBACKEND_InputBufferForHostPolicy"] = make.fields(_buffer(3), index=2)
    inputs = (RequestWord.INPUT_COUNT, RequestWord.INPUTS)
    outputs = (RequestWord.OUTPUT_COUNT, RequestWord.OUTPUT_NAMES)
    code["TRITONBACKEND_RequestInputByIndex"] = make.item(*inputs, 6, is_loaded=False)
    code["TRITONBACKEND_RequestInputName"] = make.item(*inputs, 6, is_loaded=True)
    code["TRITONBACKEND_RequestOutputName"] = make.item(*outputs, 3, is_loaded=True)
    code["TRITONBACKEND_RequestInput"] = make.named(*inputs)
    for name in ("TRITONSERVER_LogMessage", "TRITONSERVER_LogIsEnabled"):
        code[name] = make.quiet(_VERBOSE, addresses.is_verbose)
    code["TRITONBACKEND_ModelInstanceReportStatistics"] = make.stored(4, addresses.computed_ns)
    code["TRITONBACKEND_ModelInstanceReportBatchStatistics"] = make.stored(3, addresses.computed_ns)
    for name, table in (
        ("TRITONSERVER_DataTypeString", addresses.datatype_names),
        ("TRITONSERVER_DataTypeByteSize", addresses.datatype_sizes),
    ):
        code[name] = make.table(table, addresses.datatype_count)
    return code


class _Processor(Protocol):
    """Makes the code of functions; uncommon cases fall through to the jump to Python."""

    def fields(self, fields: Sequence[_RecordField], index: int | None = None) -> bytes:
        """Writes fields; the argument `index`, if there is one, must be 0."""

    def item(self, count: int, base: int, shift: int, *, is_loaded: bool) -> bytes:
        """Writes an item of an array, or its address, to where argument 2 points."""

    def named(self, count: int, base: int) -> bytes:
        """Writes the address of the input with a name to where argument 2 points."""

    def quiet(self, level: int, flag: int) -> bytes:
        """Does nothing if argument 0 is this level and the word at `flag` is 0."""

    def stored(self, argument: int, address: int) -> bytes:
        """Writes an argument and the next one to an address."""

    def table(self, address: int, count: int) -> bytes:
        """Returns an item of a table."""


class _X86:
    """x86_64. Arguments are in rdi, rsi, rdx, rcx, r8, r9 and then on the stack."""

    _START = bytes.fromhex("f30f1efa")  # endbr64
    _SUCCESS = bytes.fromhex("31c0c3")  # xor eax, eax; ret
    _TEST = ("4885ff", "4885f6", "4885d2", "4885c9", "4d85c0", "4d85c9", "4d85d2")
    _PUT: ClassVar = {
        8: ("", "488906", "488902", "488901", "498900", "498901", "498902"),  # mov [argument], rax
        4: ("", "8906", "8902", "8901", "418900", "418901", "418902"),  # mov [argument], eax
    }

    def fields(self, fields: Sequence[_RecordField], index: int | None = None) -> bytes:
        code = b""
        for each in fields:
            register = min(each.argument, 6)
            if each.argument >= 6:  # mov r10, [rsp + ...]
                code += bytes.fromhex("4c8b5424") + bytes([8 * (each.argument - 5)])
            load = self._load(each)
            put = bytes.fromhex(self._PUT[each.size][register])
            if each.is_optional:  # test argument, argument; jz over both
                test = bytes.fromhex(self._TEST[register])
                code += test + b"\x74" + bytes([len(load) + len(put)])
            code += load + put
        code += self._SUCCESS
        if index is not None:  # test esi or edx; jnz to the jump
            code = bytes.fromhex({1: "85f6", 2: "85d2"}[index]) + b"\x75" + _short(code) + code
        return self._checked(code)

    def _load(self, field: _RecordField) -> bytes:
        if field.word is None:  # mov eax, 1
            return b"\xb8\1\0\0\0"
        # mov rax or eax, [rdi + ...]
        return bytes.fromhex("488b47" if field.size == 8 else "8b47") + bytes([8 * field.word])

    def _checked(self, code: bytes) -> bytes:
        """Returns code that falls through to the jump if argument 0 is NULL."""
        return self._START + bytes.fromhex("4885ff74") + _short(code) + code

    def item(self, count: int, base: int, shift: int, *, is_loaded: bool) -> bytes:
        # mov eax, esi; shl rax, ...; add rax, [rdi + ...]; (mov rax, [rax]); mov [rdx], rax
        code = bytes.fromhex("89f048c1e0") + bytes([shift]) + bytes.fromhex("480347")
        code += bytes([8 * base]) + (bytes.fromhex("488b00") if is_loaded else b"")
        code += bytes.fromhex("488902") + self._SUCCESS
        # cmp esi, [rdi + ...]; jae to the jump
        return self._checked(
            bytes.fromhex("3b77") + bytes([8 * count]) + b"\x73" + _short(code) + code
        )

    def named(self, count: int, base: int) -> bytes:
        # mov ecx, [rdi + ...]; mov rax, [rdi + ...]
        start = b"\x8b\x4f" + bytes([8 * count]) + bytes.fromhex("488b47") + bytes([8 * base])
        # next: mov r8, [rax]; xor r9d, r9d
        # compare: mov r10b, [rsi + r9]; cmp r10b, [r8 + r9]; jne skip; inc r9; test r10b, r10b
        # jne compare; mov [rdx], rax; xor eax, eax; ret
        # skip: add rax, 64; dec ecx; jmp to the test before next
        body = bytes.fromhex("4c8b004531c9468a140e473a1408750e49ffc14584d275ee48890231c0c3")
        skip = bytes.fromhex("4883c040ffc9")
        loop = body + skip + b"\xeb" + _backward(4 + len(body) + len(skip) + 2)
        # test ecx, ecx; jz to the jump
        return self._checked(start + bytes.fromhex("85c974") + _short(loop) + loop)

    def quiet(self, level: int, flag: int) -> bytes:
        # movabs rax, flag; cmp dword [rax], 0; jne to the jump; return success
        code = bytes.fromhex("48b8") + struct.pack("<Q", flag) + bytes.fromhex("833800")
        code += b"\x75" + _short(self._SUCCESS) + self._SUCCESS
        # cmp edi, level; jne to the jump
        return self._START + bytes.fromhex("83ff") + bytes([level]) + b"\x75" + _short(code) + code

    def stored(self, argument: int, address: int) -> bytes:
        # movabs rax, address; mov [rax], argument; mov [rax + 8], next argument
        put = {3: "4889084c894008", 4: "4c89004c894808"}[argument]
        code = bytes.fromhex("48b8") + struct.pack("<Q", address) + bytes.fromhex(put)
        return self._START + code + self._SUCCESS

    def table(self, address: int, count: int) -> bytes:
        # mov edi, edi; movabs rax, address; mov rax, [rax + 8 * rdi]; ret
        code = bytes.fromhex("89ff48b8") + struct.pack("<Q", address) + bytes.fromhex("488b04f8c3")
        # cmp edi, count; jae to the jump
        return self._START + bytes.fromhex("83ff") + bytes([count]) + b"\x73" + _short(code) + code


def _short(code: bytes) -> bytes:
    """Returns the distance of a short jump over code."""
    assert len(code) < 128, "the jump is too far"
    return bytes([len(code)])


def _backward(count: int) -> bytes:
    """Returns the distance of a short jump back, counted from its end."""
    return struct.pack("b", -count)


class _Arm:
    """aarch64. Eight arguments are in x0 to x7."""

    _START, _RETURN, _ZERO = 0xD503245F, 0xD65F03C0, 0xD2800000  # bti c; ret; mov x0, #0

    def fields(self, fields: Sequence[_RecordField], index: int | None = None) -> bytes:
        code: list[int] = []
        for each in fields:
            is_long = each.size == 8
            if each.word is None:  # mov w9, #1
                load = 0x52800029
            else:  # ldr x9 or w9, [x0, #...]
                load = 0xF9400009 | each.word << 10 if is_long else 0xB9400009 | 2 * each.word << 10
            put = (0xF9000009 if is_long else 0xB9000009) | each.argument << 5  # str, [argument]
            if each.is_optional:  # cbz argument, over both
                code.append(0xB4000060 | each.argument)
            code += [load, put]
        code += [self._ZERO, self._RETURN]
        if index is not None:  # cbnz index, to the jump
            code.insert(0, 0x35000000 | (len(code) + 1) << 5 | index)
        return self._checked(code)

    def _checked(self, code: Sequence[int]) -> bytes:
        """Returns code that falls through to the jump if argument 0 is NULL."""
        return _packed([self._START, 0xB4000000 | (len(code) + 1) << 5, *code])  # cbz x0

    def item(self, count: int, base: int, shift: int, *, is_loaded: bool) -> bytes:
        # ubfiz x9, x1, #shift, #32; ldr x10, [x0, #...]; add x9, x9, x10; (ldr x9, [x9]);
        # str x9, [x2]
        code = [
            0xD3400000 | (64 - shift) << 16 | 31 << 10 | 1 << 5 | 9,
            0xF940000A | base << 10,
            0x8B0A0129,
            *([0xF9400129] if is_loaded else []),
            0xF9000049,
            self._ZERO,
            self._RETURN,
        ]
        # ldr w9, [x0, #...]; cmp w1, w9; b.hs to the jump
        head = [0xB9400009 | 2 * count << 10, 0x6B09003F, 0x54000002 | (len(code) + 1) << 5]
        return self._checked([*head, *code])

    def named(self, count: int, base: int) -> bytes:
        return self._checked(
            [
                0xB9400009 | 2 * count << 10,  # ldr w9, [x0, #...]
                0xF940000A | base << 10,  # ldr x10, [x0, #...]
                0x340001C9,  # next: cbz w9, to the jump
                0xF940014B,  # ldr x11, [x10]
                0xAA0103EC,  # mov x12, x1
                0x3840158D,  # compare: ldrb w13, [x12], #1
                0x3840156E,  # ldrb w14, [x11], #1
                0x6B0E01BF,  # cmp w13, w14
                0x540000A1,  # b.ne skip
                0x35FFFF8D,  # cbnz w13, compare
                0xF900004A,  # str x10, [x2]
                self._ZERO,
                self._RETURN,
                0x91000000 | 8 * INPUT_WORDS << 10 | 10 << 5 | 10,  # skip: add x10, x10, #64
                0x51000529,  # sub w9, w9, #1
                0x17FFFFF3,  # b next
            ]
        )

    def quiet(self, level: int, flag: int) -> bytes:
        # ldr w9, [x9]; cbnz w9, to the jump; return success
        code = [*_address(flag), 0xB9400129, 0x35000069, self._ZERO, self._RETURN]
        # cmp w0, #level; b.ne to the jump
        head = [self._START, 0x7100001F | level << 10, 0x54000001 | (len(code) + 1) << 5]
        return _packed([*head, *code])

    def stored(self, argument: int, address: int) -> bytes:
        # stp argument, next argument, [x9]
        put = 0xA9000000 | (argument + 1) << 10 | 9 << 5 | argument
        return _packed([self._START, *_address(address), put, self._ZERO, self._RETURN])

    def table(self, address: int, count: int) -> bytes:
        # ldr x0, [x9, w0, uxtw #3]; ret
        code = [*_address(address), 0xF8605920, self._RETURN]
        # cmp w0, #count; b.hs to the jump
        head = [self._START, 0x7100001F | count << 10, 0x54000002 | (len(code) + 1) << 5]
        return _packed([*head, *code])


def _address(value: int) -> list[int]:
    """Returns the four instructions that put an address into x9."""
    return [
        (0xD2800009 if part == 0 else 0xF2800009) | part << 21 | (value >> 16 * part & 0xFFFF) << 5
        for part in range(4)
    ]


def _packed(code: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(code)}I", *code)
