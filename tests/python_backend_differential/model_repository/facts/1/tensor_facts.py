# SPDX-License-Identifier: Apache-2.0
"""Tensors: what they are made of, what they refuse, and DLPack both ways."""

import sys

import numpy as np
import triton_python_backend_utils as pb_utils

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]
REFUSED = ("U5", "complex64", "complex128", "datetime64[s]", "timedelta64[s]", "V4")
GRID = np.arange(6, dtype=np.int32).reshape(2, 3)


class Untold:
    """An element of a tensor that says what it is only by `str`."""

    def __str__(self):
        return "untold"


def of_bytes(*values):
    return pb_utils.Tensor("t", np.array(values, dtype=object))


def dtypes(_request):
    facts = {
        f"{dtype} array": lambda dtype=dtype: pb_utils.Tensor("t", np.zeros((1, 2), dtype))
        for dtype in DTYPES
    }
    refused = {
        f"{dtype} array": lambda dtype=dtype: pb_utils.Tensor("t", np.zeros(2, dtype))
        for dtype in REFUSED
    }
    return {
        **facts,
        **refused,
        "object array of bytes": lambda: of_bytes(b"a", b"\x00\xff"),
        "object array of text": lambda: of_bytes("a", "é"),
        "object array of numbers": lambda: of_bytes(1, 2.5, None, True),
        "object array of objects": lambda: of_bytes(Untold()),
        "array of fixed bytes": lambda: pb_utils.Tensor("t", np.array([b"abc", b"d"])),
        "empty object array": lambda: pb_utils.Tensor("t", np.array([], dtype=object)),
        "empty float array": lambda: pb_utils.Tensor("t", np.zeros((2, 0, 3), np.float32)),
        "array without dimensions": lambda: pb_utils.Tensor("t", np.array(7, np.int64)),
        "array of bytes without dimensions": lambda: pb_utils.Tensor(
            "t", np.array(b"x", dtype=object)
        ),
        "big endian array": lambda: pb_utils.Tensor("t", np.array([1, 2], ">i4")),
    }


def forms(_request):
    transposed, reversed_rows = pb_utils.Tensor("t", GRID.T), pb_utils.Tensor("t", GRID[::-1])
    return {
        "transposed array": lambda: transposed,
        "transposed array is made contiguous": lambda: transposed.as_numpy().flags.c_contiguous,
        "reversed array": lambda: reversed_rows,
        "sliced array": lambda: pb_utils.Tensor("t", GRID[:, 1]),
        "Fortran array": lambda: pb_utils.Tensor("t", np.asfortranarray(GRID)),
        "broadcast array": lambda: pb_utils.Tensor("t", np.broadcast_to(np.float32(1), (2, 2))),
        "non-contiguous array of bytes": lambda: pb_utils.Tensor(
            "t", np.array([[b"a", b"b"], [b"c", b"d"]], dtype=object).T
        ),
        "array is the same each time": lambda: transposed.as_numpy() is transposed.as_numpy(),
        "contiguous array is kept": lambda: np.shares_memory(
            pb_utils.Tensor("t", GRID).as_numpy(), GRID
        ),
        "array can be written": lambda: (
            pb_utils.Tensor("t", GRID.copy()).as_numpy().flags.writeable
        ),
        "shape": lambda: pb_utils.Tensor("t", GRID).shape(),
        "shape of nothing": lambda: pb_utils.Tensor("t", np.zeros((0, 4), np.int8)).shape(),
        "name": lambda: pb_utils.Tensor("a name", GRID).name(),
        "name of bytes": lambda: pb_utils.Tensor(b"bytes", GRID).name(),
        "name with unicode": lambda: pb_utils.Tensor("é", GRID).name(),
        "is on the CPU": lambda: pb_utils.Tensor("t", GRID).is_cpu(),
        "Triton's number of its dtype": lambda: pb_utils.Tensor("t", GRID).triton_dtype(),
    }


def mistakes(_request):
    return {
        "no name": lambda: pb_utils.Tensor("", GRID),
        "None for a name": lambda: pb_utils.Tensor(None, GRID),
        "number for a name": lambda: pb_utils.Tensor(1, GRID),
        "None for an array": lambda: pb_utils.Tensor("t", None),
        "no name and None for an array": lambda: pb_utils.Tensor("", None),
        "list for an array": lambda: pb_utils.Tensor("t", [1, 2]),
        "scalar for an array": lambda: pb_utils.Tensor("t", np.float32(1)),
        "number for an array": lambda: pb_utils.Tensor("t", 1.5),
        "no arguments": pb_utils.Tensor,
        "one argument": lambda: pb_utils.Tensor("t"),
        "three arguments": lambda: pb_utils.Tensor("t", GRID, 1),
        "array as a keyword": lambda: pb_utils.Tensor(name="t", array=GRID),
        "attribute that does not exist": lambda: pb_utils.Tensor("t", GRID).dtype,
        "len": lambda: len(pb_utils.Tensor("t", GRID)),
    }


def count_references():
    tensor = pb_utils.Tensor("t", GRID.copy())
    before = sys.getrefcount(tensor)
    capsule = tensor.to_dlpack()
    held = sys.getrefcount(tensor) - before
    del capsule
    return [held, sys.getrefcount(tensor) - before]


def dlpack_out(_request):
    tensor = pb_utils.Tensor("t", GRID.copy())
    return {
        "numpy takes it": lambda: np.from_dlpack(tensor),
        "numpy shares its memory": lambda: np.shares_memory(
            np.from_dlpack(tensor), tensor.as_numpy()
        ),
        "capsule": lambda: type(tensor.to_dlpack()).__name__,
        "capsule text": lambda: 'capsule object "dltensor"' in repr(tensor.to_dlpack()),
        "device": tensor.__dlpack_device__,
        "capsule for a stream": lambda: type(tensor.__dlpack__(stream=None)).__name__,
        "capsule by position": lambda: type(tensor.__dlpack__(None)).__name__,
        "capsule of bytes": lambda: of_bytes(b"a").to_dlpack(),
        "references that a capsule holds": count_references,
        **{
            f"{dtype} by DLPack": lambda dtype=dtype: np.from_dlpack(
                pb_utils.Tensor("t", np.ones(2, dtype))
            )
            for dtype in DTYPES
        },
    }


class WithoutDevice:
    """An array that does not say where it is."""

    def __dlpack__(self, stream=None):
        return GRID.__dlpack__()


def twice_the_same_capsule():
    capsule = pb_utils.Tensor("t", GRID.copy()).to_dlpack()
    pb_utils.Tensor.from_dlpack("a", capsule)
    return pb_utils.Tensor.from_dlpack("b", capsule)


def dlpack_in(_request):
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = pb_utils.Tensor("a", numbers)
    return {
        "tensor": lambda: pb_utils.Tensor.from_dlpack("b", tensor),
        "tensor keeps its memory": lambda: np.shares_memory(
            pb_utils.Tensor.from_dlpack("b", tensor).as_numpy(), numbers
        ),
        "capsule": lambda: pb_utils.Tensor.from_dlpack("b", tensor.to_dlpack()),
        "tensor that is gone": lambda: pb_utils.Tensor.from_dlpack(
            "b", pb_utils.Tensor("a", numbers + 1).to_dlpack()
        ),
        "capsule that was taken": twice_the_same_capsule,
        "transposed array": lambda: pb_utils.Tensor.from_dlpack("t", numbers.T),
        "array with steps": lambda: pb_utils.Tensor.from_dlpack("t", numbers[:, ::2]),
        "no name": lambda: pb_utils.Tensor.from_dlpack("", numbers),
        "None for a name": lambda: pb_utils.Tensor.from_dlpack(None, numbers),
        "None": lambda: pb_utils.Tensor.from_dlpack("t", None),
        "list": lambda: pb_utils.Tensor.from_dlpack("t", [1, 2]),
        "object without a device": lambda: pb_utils.Tensor.from_dlpack("t", WithoutDevice()),
        "no object": lambda: pb_utils.Tensor.from_dlpack("t"),
        **{
            f"{dtype} from DLPack": lambda dtype=dtype: pb_utils.Tensor.from_dlpack(
                "t", pb_utils.Tensor("a", np.ones(2, dtype))
            )
            for dtype in DTYPES
        },
    }


def dlpack_arrays(_request):
    """Arrays of NumPy, which the real server takes and dies of."""
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    return {
        "array": lambda: pb_utils.Tensor.from_dlpack("t", numbers),
        "array keeps its memory": lambda: np.shares_memory(
            pb_utils.Tensor.from_dlpack("t", numbers).as_numpy(), numbers
        ),
        "row of an array": lambda: pb_utils.Tensor.from_dlpack("t", numbers[1]),
        "array of one column": lambda: pb_utils.Tensor.from_dlpack("t", numbers[:, :1]),
        "array without dimensions": lambda: pb_utils.Tensor.from_dlpack("t", np.array(3, np.int16)),
        "empty array": lambda: pb_utils.Tensor.from_dlpack("t", np.zeros((0, 3), np.int16)),
    }


GROUPS = {
    "tensor dtypes": dtypes,
    "tensor forms": forms,
    "tensor mistakes": mistakes,
    "tensor to DLPack": dlpack_out,
    "tensor from DLPack": dlpack_in,
    "tensor from DLPack arrays": dlpack_arrays,
}
