# SPDX-License-Identifier: Apache-2.0
"""The functions of `libtritonserver.so`: their results and arguments.

They are read from the headers that users compile with.

A signature is one letter for the result, a colon, and one letter for each argument: `e` is a
pointer to an error that the caller owns, NULL for success; `p` a pointer; `s` a C string; `b` a
bool; `i` and `q` are signed numbers of 32 and 64 bits, `I` and `Q` unsigned ones; `d` is a double
and `v` nothing.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Container
from typing import Any

from pytriton.base.package import PACKAGE_FOLDER

# Pointers are plain integers: typed ones take twice as long in each call. A C string as an argument
# becomes bytes, or None for NULL.
_TYPES: dict[str, Any] = {
    "e": ctypes.c_uint64,
    "p": ctypes.c_uint64,
    "s": ctypes.c_char_p,
    "b": ctypes.c_bool,
    "i": ctypes.c_int32,
    "q": ctypes.c_int64,
    "I": ctypes.c_uint32,
    "Q": ctypes.c_uint64,
    "d": ctypes.c_double,
    "v": None,
}

_HEADERS = ("tritonserver.h", "tritonbackend.h")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(
    r"TRITON(?:SERVER|BACKEND)_DECLSPEC\s+([\w\s]+?[\s*]+)(TRITON\w+)\s*\(([^()]*)\)\s*;"
)
_ENUMERATION = re.compile(r"typedef enum \w+ \{[^}]*\} (\w+);")
_STRING = re.compile(r"\s*const char\* ?\w+\s*")
_LETTERS = {
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


def _declared_functions() -> dict[str, str]:
    """Returns the signatures of the functions that the headers declare; that takes 2 ms."""
    folder = PACKAGE_FOLDER / "include" / "triton" / "core"
    text = _COMMENT.sub("", "".join((folder / name).read_text() for name in _HEADERS))
    enumerations = set(_ENUMERATION.findall(text))
    functions = {}
    for result, name, arguments in _FUNCTION.findall(text):
        letters = [_letter(each, enumerations) for each in arguments.split(",")]
        # A string that is a result is not converted, so it counts as an address.
        letter = _letter(f"{result} x", enumerations).replace("s", "p")
        functions[name] = f"{'e' if result.strip() == _ERROR else letter}:{''.join(letters)}"
    return functions


def _letter(argument: str, enumerations: Container[str]) -> str:
    """Returns the letter of a declared argument, such as `const uint32_t index`."""
    if _STRING.fullmatch(argument):
        return "s"
    if "*" in argument or argument.split(maxsplit=1)[0].endswith("Fn_t"):
        return "p"
    kind = " ".join(word for word in argument.split()[:-1] if word != "const")
    return "i" if kind in enumerations else _LETTERS[kind]


_ERROR = "TRITONSERVER_Error*"
# The APIs of caches and of repository agents, which have no headers here: they are not supported.
_UNSUPPORTED = {
    "TRITONCACHE_ApiVersion": "e:pp",
    "TRITONCACHE_CacheEntryAddBuffer": "e:ppp",
    "TRITONCACHE_CacheEntryBufferCount": "e:pp",
    "TRITONCACHE_CacheEntryGetBuffer": "e:pQpp",
    "TRITONCACHE_CacheEntrySetBuffer": "e:pQpp",
    "TRITONCACHE_Copy": "e:pp",
    "TRITONREPOAGENT_ApiVersion": "e:pp",
    "TRITONREPOAGENT_ModelConfig": "e:ppIp",
    "TRITONREPOAGENT_ModelParameter": "e:ppIpp",
    "TRITONREPOAGENT_ModelParameterCount": "e:ppp",
    "TRITONREPOAGENT_ModelRepositoryLocation": "e:pppp",
    "TRITONREPOAGENT_ModelRepositoryLocationAcquire": "e:ppip",
    "TRITONREPOAGENT_ModelRepositoryLocationRelease": "e:pps",
    "TRITONREPOAGENT_ModelRepositoryUpdate": "e:ppis",
    "TRITONREPOAGENT_ModelSetState": "e:pp",
    "TRITONREPOAGENT_ModelState": "e:pp",
    "TRITONREPOAGENT_SetState": "e:pp",
    "TRITONREPOAGENT_State": "e:pp",
}
FUNCTIONS: dict[str, str] = {
    **_declared_functions(),
    **_UNSUPPORTED,
    # A text with a size has no end mark: its address is passed, not a string.
    "TRITONSERVER_MessageNewFromSerializedJson": "e:ppQ",
    # The error is the result, and does not mean that the call failed.
    "TRITONSERVER_ErrorNew": "p:is",
    "TRITONSERVER_InferenceResponseError": "p:p",
}

# The functions that a backend implements and the server calls; none of them is exported here.
ENTRY_POINTS = {
    "TRITONBACKEND_Initialize": "e:p",
    "TRITONBACKEND_Finalize": "e:p",
    "TRITONBACKEND_GetBackendAttribute": "e:pp",
    "TRITONBACKEND_ModelInitialize": "e:p",
    "TRITONBACKEND_ModelFinalize": "e:p",
    "TRITONBACKEND_ModelInstanceInitialize": "e:p",
    "TRITONBACKEND_ModelInstanceFinalize": "e:p",
    "TRITONBACKEND_ModelInstanceExecute": "e:ppI",
    "TRITONBACKEND_ModelInstanceReady": "e:p",
}


def returns_error(name: str) -> bool:
    """Returns whether a function returns an error for the caller, also if it is unknown."""
    return FUNCTIONS.get(name, "e").startswith("e")


@functools.cache
def prototype(signature: str) -> type[Any]:
    """Returns the type of functions with a signature, for callbacks and for functions of C."""
    result, arguments = signature.split(":")
    return ctypes.CFUNCTYPE(_TYPES[result], *[_TYPES[each] for each in arguments])
