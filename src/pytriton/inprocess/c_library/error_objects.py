# SPDX-License-Identifier: Apache-2.0
"""Error objects, which the library makes in C: made for the application, and taken from it."""

from __future__ import annotations

import ctypes
from typing import Any

from pytriton.base.errors import InternalError, ServerError, error_from_code
from pytriton.runtime.native_backend.server_objects import Errors

_KINDS: tuple[Any, ...] = (
    ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int32, ctypes.c_char_p),  # new
    ctypes.CFUNCTYPE(None, ctypes.c_uint64),  # delete
    ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64),  # code
    ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_uint64),  # message
)


class LibraryErrors(Errors):
    """The errors of `library.c`, whose functions are at an address."""

    def __init__(self, address: int) -> None:
        super().__init__()
        addresses = (ctypes.c_uint64 * len(_KINDS)).from_address(address)
        functions = [kind(each) for kind, each in zip(_KINDS, addresses, strict=True)]
        self._make, self._free, self._code_of, self._message_of = functions

    def new(self, code: int, message: str | bytes) -> int:
        """Make an error object, which belongs to the application."""
        text = message.encode("utf-8", "backslashreplace") if isinstance(message, str) else message
        handle: int = self._make(code, text.replace(b"\0", b"\\0"))
        return handle

    def read(self, handle: int) -> ServerError:
        """Returns what an error object of the application says."""
        message = self._message_of(handle).decode(errors="backslashreplace")
        try:
            return error_from_code(self._code_of(handle), message)
        except ValueError:  # no code of Triton's
            return InternalError(message)

    def take(self, handle: int) -> ServerError:
        """Returns what an error object says that the application has passed to us; deletes it."""
        error = self.read(handle)
        self._free(handle)
        return error
