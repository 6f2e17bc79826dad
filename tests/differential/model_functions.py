# SPDX-License-Identifier: Apache-2.0
"""What the compared models compute, on plain arrays, so that any server can host them.

The repository writer copies this file next to each `model.py`, so it imports nothing of ours.
"""

import json

import numpy as np


def add_sub(inputs, parameters):
    """The sum and the difference of `a` and `b`."""
    return {"add": inputs["a"] + inputs["b"], "sub": inputs["a"] - inputs["b"]}


def identity(inputs, parameters):
    """`IN` unchanged."""
    return {"OUT": inputs["IN"]}


def sum_optional(inputs, parameters):
    """`required`, plus `extra` where the request has it."""
    total = inputs["required"]
    if "extra" in inputs:
        total = total + inputs["extra"]
    return {"total": total}


def echo_parameters(inputs, parameters):
    """The request's parameters as JSON text, once for each row."""
    text = json.dumps(parameters, sort_keys=True).encode()
    rows = inputs["IN"].shape[0]
    return {"seen": np.array([[text]] * rows, dtype=object)}


def fail(inputs, parameters):
    """Nothing: every request fails."""
    raise ValueError("this model always fails")


def special_values(inputs, parameters):
    """NaN, both infinities and a subnormal, which JSON has no words for."""
    return {"OUT": np.array([np.nan, np.inf, -np.inf, 1e-45, -0.0], dtype=np.float32)}


def raw_bytes(inputs, parameters):
    """Bytes that are not UTF-8, a NUL and an empty element."""
    return {"OUT": np.array([b"\xff\xfe", b"a\x00b", b"", "caf\u00e9".encode()], dtype=object)}
