# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import sys

import pytest


class SignalStack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = [
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("size", ctypes.c_size_t),
    ]


@pytest.fixture(autouse=True)
def signal_stack():
    """Put back the stack on which this thread handles signals.

    OpenVINO replaces it, on arm64 with memory that it frees. The next signal would end the process.
    """
    if sys.platform != "linux":  # the structure differs
        yield
        return
    change = ctypes.CDLL(None).sigaltstack
    before = SignalStack()
    assert change(None, ctypes.byref(before)) == 0
    yield
    assert change(ctypes.byref(before), None) == 0
