# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_Message: JSON documents that C reads or makes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Handles, Kept, content, put_word


@dataclass(slots=True)
class _Document:
    data: bytes
    address: int
    kept: Kept


class Documents:
    """The documents that exist."""

    def __init__(self) -> None:
        self._documents: Handles[_Document] = Handles("a message")

    def __len__(self) -> int:
        return len(self._documents)

    def new(self, value: Any) -> int:
        """Returns the handle of a new document."""
        return self.new_from_text(json.dumps(value, separators=(",", ":")).encode())

    def new_from_text(self, data: bytes) -> int:
        """Returns the handle of a new document whose JSON text is known."""
        kept = Kept()
        return self._documents.add(_Document(data, kept.string(data), kept))

    def read(self, message: int) -> Any:
        """Returns the value of a document; InvalidArgumentError if its text is not JSON."""
        data = self._documents.get(message).data
        try:
            return json.loads(data)
        except ValueError as error:
            raise InvalidArgumentError(
                f"failed to parse the request JSON buffer: {error}"
            ) from None

    @export("TRITONSERVER_MessageNewFromSerializedJson")
    def _new(self, message: int, base: int, size: int) -> None:
        # As in Triton, the text is not read before it is needed.
        put_word(message, self.new_from_text(content(base, size)))

    @export("TRITONSERVER_MessageSerializeToJson")
    def _serialize(self, message: int, base: int, size: int) -> None:
        document = self._documents.get(message)
        put_word(base, document.address)
        put_word(size, len(document.data))

    @export("TRITONSERVER_MessageDelete")
    def _delete(self, message: int) -> None:
        self._documents.pop(message)
