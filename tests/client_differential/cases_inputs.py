# SPDX-License-Identifier: Apache-2.0
"""What inputs may be: their types, shapes and names, and everything that is wrong with them."""

from __future__ import annotations

import numpy as np

from tests.client_differential.case import Row, each
from tests.client_differential.models import NUMBERS, TYPES
from tests.client_differential.ways import COUPLED

A = np.array([1, 2], np.float32)
B = np.array([3, 5], np.float32)
BATCH = np.arange(6, dtype=np.float32).reshape(3, 2)
LARGE = np.arange(512 * 1024, dtype=np.float32)  # 2 MiB
GRID = np.arange(6, dtype=np.float32).reshape(2, 3)
WORDS = np.array([b"one", b"two\x00", b"", bytes(range(256))], dtype=object)
TYPED = {name: np.array([0, 1], dtype) for name, dtype in TYPES.items() if name != "bytes"}
TYPED["bytes"] = np.array([b"a", b"b\x00"], dtype=object)


def extremes() -> dict[str, np.ndarray]:
    """The least and the greatest value of each type."""
    found = dict(TYPED)
    for name in NUMBERS:
        limits = np.finfo(name) if name.startswith("float") else np.iinfo(name)
        found[name] = np.array([limits.min, limits.max], name)
    return found


def typed_as(name: str, dtype: object) -> dict[str, np.ndarray]:
    return {**TYPED, name: TYPED[name].astype(dtype)}


STRANGE = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
GOOD = (
    Row("sample by position", "AddSub", lambda c: c.infer_sample(A, B)),
    Row("sample by name", "AddSub", lambda c: c.infer_sample(a=A, b=B)),
    Row("sample by name in another order", "AddSub", lambda c: c.infer_sample(b=B, a=A)),
    Row("batch by position", "AddSub", lambda c: c.infer_batch(BATCH, BATCH)),
    Row("batch by name", "AddSub", lambda c: c.infer_batch(a=BATCH, b=BATCH)),
    Row("batch of one", "AddSub", lambda c: c.infer_batch(BATCH[:1], BATCH[:1])),
    Row(
        "batch of the greatest size",
        "AddSub",
        lambda c: c.infer_batch(*[np.ones((16, 1), "f4")] * 2),
    ),
    Row("sample of a model without batching", "Plain", lambda c: c.infer_sample(A)),
    Row("sample of two axes for a model with one", "Plain", lambda c: c.infer_sample(GRID)),
    Row("2 MiB", "Plain", lambda c: c.infer_sample(LARGE)),
    Row("2 MiB by a batch", "AddSub", lambda c: c.infer_batch(*[LARGE.reshape(16, -1)] * 2)),
    Row("fixed shape", "Grid", lambda c: c.infer_sample(GRID)),
    Row("fixed shape by a batch", "Grid", lambda c: c.infer_batch(np.stack([GRID, GRID]))),
    Row("an array that is not contiguous", "Grid", lambda c: c.infer_sample(GRID.T.copy().T)),
    Row("every second element", "Plain", lambda c: c.infer_sample(np.arange(8, dtype="f4")[::2])),
    Row(
        "an array that cannot be written",
        "Plain",
        lambda c: c.infer_sample(np.broadcast_to(A, (2,))),
    ),
    Row("not a number and infinities", "Plain", lambda c: c.infer_sample(STRANGE)),
    Row("every type", "Types", lambda c: c.infer_sample(**TYPED)),
    Row(
        "every type by a batch",
        "Types",
        lambda c: c.infer_batch(**{n: v[None] for n, v in TYPED.items()}),
    ),
    Row("extremes of every type", "Types", lambda c: c.infer_sample(**extremes())),
    Row("bytes", "Text", lambda c: c.infer_sample(WORDS)),
    Row("bytes of fixed length", "Text", lambda c: c.infer_sample(np.array([b"ab", b"c"]))),
    Row("bytes in a batch", "Text", lambda c: c.infer_batch(np.stack([WORDS, WORDS]))),
    Row(
        "bytes of UTF-8",
        "Text",
        lambda c: c.infer_sample(np.array(["gr\u00fc\u00df".encode()], object)),
    ),
    Row(
        "text that was encoded",
        "Text",
        lambda c: c.infer_sample(np.char.encode(np.array(["ä", "b"]), "utf-8")),
    ),
    Row("empty array", "Plain", lambda c: c.infer_sample(np.zeros(0, np.float32))),
    Row("empty rows", "AddSub", lambda c: c.infer_sample(np.zeros(0, "f4"), np.zeros(0, "f4"))),
    Row("empty array of bytes", "Text", lambda c: c.infer_sample(np.array([], np.bytes_))),
    Row("both optional inputs", "Optional", lambda c: c.infer_sample(A, B)),
    Row("first optional input", "Optional", lambda c: c.infer_sample(A)),
    Row("second optional input", "Optional", lambda c: c.infer_sample(b=B)),
    Row("optional inputs in a batch", "Optional", lambda c: c.infer_batch(b=BATCH)),
    Row(
        "one value for all rows", "Factor", lambda c: c.infer_batch(BATCH, np.full((3, 1), 2, "f4"))
    ),
    Row("other values for other rows", "Factor", lambda c: c.infer_batch(BATCH, BATCH[:, :1])),
    Row("more inputs than the model has", "AddSub", lambda c: c.infer_sample(A, B, A)),
)
BAD = (
    Row("no input", "AddSub", lambda c: c.infer_sample()),
    Row("no input for a batch", "AddSub", lambda c: c.infer_batch()),
    Row("by position and by name", "AddSub", lambda c: c.infer_sample(A, b=B)),
    Row("batch by position and by name", "AddSub", lambda c: c.infer_batch(BATCH, b=BATCH)),
    Row("missing input", "AddSub", lambda c: c.infer_sample(A)),
    Row("missing input by name", "AddSub", lambda c: c.infer_sample(b=B)),
    Row("unknown input", "AddSub", lambda c: c.infer_sample(a=A, b=B, c=A)),
    Row("unknown input only", "AddSub", lambda c: c.infer_sample(c=A)),
    Row("wrong type", "AddSub", lambda c: c.infer_sample(A.astype(np.int64), B)),
    Row("wrong type of both", "AddSub", lambda c: c.infer_sample(A.astype("f8"), B.astype("f8"))),
    Row("bytes for numbers", "AddSub", lambda c: c.infer_sample(WORDS, WORDS)),
    Row("numbers for bytes", "Text", lambda c: c.infer_sample(A)),
    Row("wrong shape", "Grid", lambda c: c.infer_sample(GRID.reshape(3, 2))),
    Row("too few axes", "Grid", lambda c: c.infer_sample(GRID[0])),
    Row("too many axes", "Grid", lambda c: c.infer_sample(GRID[None])),
    Row("a scalar", "AddSub", lambda c: c.infer_sample(np.array(1, "f4"), np.array(1, "f4"))),
    Row("a sample for a batch", "AddSub", lambda c: c.infer_batch(A, B)),
    Row("other numbers of rows", "AddSub", lambda c: c.infer_batch(BATCH, BATCH[:2])),
    Row("other numbers of columns", "AddSub", lambda c: c.infer_sample(A, B[:1])),
    Row("too many rows", "AddSub", lambda c: c.infer_batch(*[np.ones((17, 2), "f4")] * 2)),
    Row("zero rows", "AddSub", lambda c: c.infer_batch(BATCH[:0], BATCH[:0])),
    Row("batch of a model without batching", "Plain", lambda c: c.infer_batch(BATCH)),
    Row("a decoupled model", "Stream", lambda c: c.infer_sample(WORDS[:1])),
    Row("a batch of a decoupled model", "Stream", lambda c: c.infer_batch(WORDS[None, :1])),
    Row("text", "Text", lambda c: c.infer_sample(np.array(["text"]))),
    Row("objects of text", "Text", lambda c: c.infer_sample(np.array(["text"], dtype=object))),
    Row("objects of numbers", "Text", lambda c: c.infer_sample(np.array([1, 2], dtype=object))),
    Row("objects of None", "Text", lambda c: c.infer_sample(np.array([None], dtype=object))),
    Row("bytes, then text", "Text", lambda c: c.infer_sample(np.array([b"a", "b"], dtype=object))),
    Row("empty array of objects", "Text", lambda c: c.infer_sample(np.array([], dtype=object))),
    Row("a list", "AddSub", lambda c: c.infer_sample([1.0, 2.0], [1.0, 2.0])),
    Row("a list of a batch", "AddSub", lambda c: c.infer_batch([[1.0]], [[1.0]])),
    Row("a list for a model without batching", "Plain", lambda c: c.infer_sample([1.0])),
    Row("None", "AddSub", lambda c: c.infer_sample(None, None)),
    Row("None by name", "AddSub", lambda c: c.infer_sample(a=A, b=None)),
    Row("a number", "AddSub", lambda c: c.infer_sample(1.0, 2.0)),
    Row("complex numbers", "Plain", lambda c: c.infer_sample(np.array([1j]))),
    Row("dates", "Plain", lambda c: c.infer_sample(np.array(["2024-01-01"], "M8[D]"))),
    Row("long doubles", "Plain", lambda c: c.infer_sample(np.array([1], np.longdouble))),
    Row("big endian", "Plain", lambda c: c.infer_sample(A.astype(">f4"))),
    Row("records", "Plain", lambda c: c.infer_sample(np.zeros(1, [("a", "f4")]))),
    Row("one type for another", "Types", lambda c: c.infer_sample(**typed_as("uint8", np.int8))),
    Row(
        "float32 for float16", "Types", lambda c: c.infer_sample(**typed_as("float16", np.float32))
    ),
    Row("numbers for bool", "Types", lambda c: c.infer_sample(**typed_as("bool", np.uint8))),
)
CASES = each(COUPLED, (*GOOD, *BAD))
