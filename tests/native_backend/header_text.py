# SPDX-License-Identifier: Apache-2.0
"""Reads the names of the functions that our C headers declare, without a compiler."""

from __future__ import annotations

import re

from pytriton.base.package import PACKAGE_FOLDER

INCLUDE = PACKAGE_FOLDER / "include"
HEADERS = ("triton/core/tritonserver.h", "triton/core/tritonbackend.h")

_FUNCTION = re.compile(r"TRITON(?:SERVER|BACKEND)_(DECLSPEC|ISPEC)\s[\w\s*]+?(TRITON\w+)\s*\(")


def declared_functions(spec: str) -> set[str]:
    """The names of one kind: DECLSPEC is called by backends, ISPEC is in them."""
    text = "\n".join((INCLUDE / name).read_text() for name in HEADERS)
    return {name for kind, name in _FUNCTION.findall(text) if kind == spec}
