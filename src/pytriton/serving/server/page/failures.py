# SPDX-License-Identifier: Apache-2.0
"""The page's documents about failures: groups, and the inputs of a request that failed.

Everybody who may read metrics may know how many requests fail, and with which kind of error.
Messages, places and contents may be secret, and are for those who have the page's token.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pytriton.base.dtypes import BY_NAME, BYTES
from pytriton.base.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytriton.base.failure_records import FailureExample
    from pytriton.serving.engine.failures import FailureBook, KeptInput, ListedGroup

MAX_VALUES = 4096  # of one input; more than that nobody reads


class KeepInputs(msgspec.Struct):
    """What a page sends to keep the inputs of the next failure of a group, or to forget them."""

    group: int
    keep: bool = True


_decoder = msgspec.json.Decoder(KeepInputs)


def failures_document(book: FailureBook, *, has_details: bool) -> dict[str, Any]:
    """Returns all groups, that with the newest failure first."""
    groups = [_group(each, has_details=has_details) for each in book.listed()]
    return {"has_details": has_details, "groups": groups}


def _group(group: ListedGroup, *, has_details: bool) -> dict[str, Any]:
    record = group.record
    document: dict[str, Any] = {
        "group": group.number,
        "model": record.model,
        "version": str(record.version) if record.version else "",
        "kind": record.kind,
        "reason": record.reason,
        "count": record.count,
        "first": record.first_s,
        "last": record.last_s,
    }
    if has_details:
        document["place"] = record.place
        document["example"] = _example(record.example)
        document["awaits_inputs"] = group.awaits_inputs
        document["has_inputs"] = group.kept is not None
    return document


def _example(example: FailureExample) -> dict[str, Any]:
    return {
        "time": example.time_s,
        "model": example.model,
        "id": example.request_id,
        "message": example.message,
        "traceback": example.traceback,
        "inputs": [msgspec.structs.asdict(each) for each in example.inputs],
        "more_inputs": example.more_inputs,
    }


def change_keeping(book: FailureBook, body: bytes) -> dict[str, Any]:
    """Keep the inputs of the next failure of a group, or forget them.

    Raises:
        ServerError: The request is malformed, or the group is gone.
    """
    try:
        asked = _decoder.decode(body)
    except msgspec.DecodeError as error:
        text = f'expected a document such as {{"group": 1, "keep": true}}, got: {error}'
        raise InvalidArgumentError(text) from error
    group = _find(book, asked.group)
    book.keep_inputs(group, is_wanted=asked.keep)
    return {"group": group.number, "awaits_inputs": group.awaits_inputs}


def inputs_document(book: FailureBook, number: int) -> dict[str, Any]:
    """Returns the inputs that were kept of a request that failed, as clients would send them.

    Raises:
        ServerError: The group is gone, or has no inputs.
    """
    kept = _find(book, number).kept
    if kept is None:
        raise NotFoundError(f"group {number} of failures has no inputs of a request")
    return {
        "time": kept.time_s,
        "id": kept.request_id,
        "inputs": [_tensor(each) for each in kept.inputs],
    }


def _find(book: FailureBook, number: int) -> ListedGroup:
    group = book.find(number)
    if group is None:
        raise NotFoundError(f"there is no group {number} of failures, or not any more")
    return group


def _tensor(kept: KeptInput) -> dict[str, Any]:
    document = msgspec.structs.asdict(kept.described)
    values, is_cut = _values(kept)
    return {**document, "data": values, "is_cut": is_cut or kept.is_cut}


def _values(kept: KeptInput) -> tuple[list[Any], bool]:
    """Returns the first values of an input, and whether there are more."""
    dtype = BY_NAME[kept.described.datatype]
    if dtype is BYTES:
        values: list[Any] = [each.decode("utf-8", "backslashreplace") for each in _strings(kept)]
    else:
        whole = len(kept.data) // dtype.itemsize * dtype.itemsize
        array = np.frombuffer(kept.data[:whole], dtype.numpy)
        if array.dtype.kind not in "biu":
            array = array.astype(np.float64)  # half precision has no values of its own in Python
        values = [_number(each) for each in array.tolist()]
    return values[:MAX_VALUES], len(values) > MAX_VALUES


def _number(value: float) -> float | str:
    """Returns a value as JSON can have it."""
    return value if math.isfinite(value) else str(value)


def _strings(kept: KeptInput) -> Iterator[bytes]:
    """Yields the elements of a BYTES tensor; the last one may be cut."""
    data, at = kept.data, 0
    while at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        yield data[at + 4 : end]
        at = end
