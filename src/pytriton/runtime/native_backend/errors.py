# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_Error: errors as C has them, made from our own and turned into them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from pytriton.base.errors import ServerError, error_from_code
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Handles, Kept, decoded

_CODE_STRINGS = (
    "Unknown",
    "Internal",
    "Not found",
    "Invalid argument",
    "Unavailable",
    "Unsupported",
    "Already exists",
    "Cancelled",
)


@dataclass(slots=True)
class _Error:
    code: int
    message: str
    message_address: int
    kept: Kept


class Errors:
    """The errors that exist. One belongs to whoever got it: a backend deletes those it gets."""

    def __init__(self) -> None:
        self._errors: Handles[_Error] = Handles("an error")
        self._kept = Kept()
        self._code_strings = [self._kept.string(each) for each in _CODE_STRINGS]
        self._invalid_code = self._kept.string("<invalid code>")

    def __len__(self) -> int:
        return len(self._errors)

    def new(self, code: int, message: str | bytes) -> int:
        """Returns the handle of a new error."""
        kept = Kept()
        text = message if isinstance(message, str) else decoded(message)
        # An error must not get lost because its text is not valid UTF-8.
        address = kept.string(text.encode("utf-8", "backslashreplace"))
        return self._errors.add(_Error(code, text, address, kept))

    def read(self, handle: int) -> ServerError:
        """Returns an error that stays with its owner."""
        error = self._errors.get(handle)
        with contextlib.suppress(ValueError):  # a code that Triton does not have
            return error_from_code(error.code, error.message)
        return ServerError(error.message)

    def take(self, handle: int) -> ServerError:
        """Returns an error that C has passed to us, and deletes it."""
        error = self.read(handle)
        self._errors.discard(handle)
        return error

    def raise_for(self, handle: int) -> None:
        """Raise the error that a function of C returned, if it did."""
        if handle:
            raise self.take(handle)

    @export("TRITONSERVER_ErrorNew")
    def _new(self, code: int, message: bytes | None) -> int:
        return self.new(code, message or b"")

    @export("TRITONSERVER_ErrorDelete")
    def _delete(self, error: int) -> None:
        self._errors.discard(error)

    @export("TRITONSERVER_ErrorCode")
    def _code(self, error: int) -> int:
        return self._errors.get(error).code

    @export("TRITONSERVER_ErrorCodeString")
    def _code_string(self, error: int) -> int:
        code = self._errors.get(error).code
        is_known = 0 <= code < len(self._code_strings)
        return self._code_strings[code] if is_known else self._invalid_code

    @export("TRITONSERVER_ErrorMessage")
    def _message(self, error: int) -> int:
        return self._errors.get(error).message_address
