# SPDX-License-Identifier: Apache-2.0
"""Reads the functions that our C headers declare, without a compiler."""

from __future__ import annotations

import pathlib
import re

import pytriton

INCLUDE = pathlib.Path(pytriton.__file__).parent / "include"
HEADERS = ("triton/core/tritonserver.h", "triton/core/tritonbackend.h")

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(
    r"TRITON(?:SERVER|BACKEND)_(DECLSPEC|ISPEC)\s+([\w\s]+?[\s*]+)(TRITON\w+)\s*\(([^()]*)\)\s*;"
)
_ENUMERATION = re.compile(r"typedef enum \w+ \{[^}]*\} (\w+);")
# Letters of the table of functions, as `q` for a signed number of 64 bits.
_PLAIN = {
    "bool": "b",
    "double": "d",
    "int": "i",
    "int32_t": "i",
    "int64_t": "q",
    "size_t": "Q",
    "uint32_t": "I",
    "uint64_t": "Q",
    "unsigned int": "I",
    "void": "v",
}


def declared_functions(spec: str) -> dict[str, str]:
    """The functions of one kind, as in `e:pi`: DECLSPEC is called by backends, ISPEC is in them."""
    text = "\n".join((INCLUDE / name).read_text() for name in HEADERS)
    text = _COMMENT.sub("", text)
    enumerations = set(_ENUMERATION.findall(text))
    found = {}
    for kind, result, name, arguments in _FUNCTION.findall(text):
        if kind != spec:
            continue
        letters = [_letter(each, enumerations) for each in arguments.split(",")]
        # A string that is a result is not converted, so it counts as an address.
        found[name] = f"{_letter(result + 'x', enumerations).replace('s', 'p')}:{''.join(letters)}"
        if result.strip() == "TRITONSERVER_Error*":
            found[name] = f"e{found[name][1:]}"
    return found


def _letter(argument: str, enumerations: set[str]) -> str:
    """The letter of `const uint32_t index`."""
    if re.fullmatch(r"\s*const char\* ?\w+\s*", argument):
        return "s"
    if "*" in argument or argument.split(maxsplit=1)[0].endswith("Fn_t"):
        return "p"
    kind = " ".join(word for word in argument.split()[:-1] if word != "const")
    return "i" if kind in enumerations else _PLAIN[kind]
