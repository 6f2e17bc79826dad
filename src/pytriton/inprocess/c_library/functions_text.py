# SPDX-License-Identifier: Apache-2.0
"""The C text of the functions that `libtritonserver.so` exports: each calls what is in its slot.

Pure: from the table of signatures to text. `library.c` has everything else.
"""

from __future__ import annotations

from collections.abc import Mapping

# The letters of a signature; the first one is the result.
_TYPES = {
    "e": "void *",
    "p": "void *",
    "s": "const char *",
    "b": "bool ",
    "i": "int32_t ",
    "q": "int64_t ",
    "I": "uint32_t ",
    "Q": "uint64_t ",
    "d": "double ",
    "v": "void ",
}
_ERROR, _NOTHING = "e", "v"


def functions_text(signatures: Mapping[str, str]) -> str:
    """Returns the table of slots, and the functions.

    Args:
        signatures: for each function the letter of its result, a colon, those of its arguments.
    """
    names = sorted(signatures)
    slots = "\n".join(f'    {{"{name}", 0}},' for name in names)
    functions = [_function(index, name, signatures[name]) for index, name in enumerate(names)]
    return "\n".join(
        [
            f"struct slot pytriton_slots[] = {{\n{slots}\n}};",
            f"const unsigned pytriton_slot_count = {len(names)};",
            *functions,
            "",
        ]
    )


def _function(index: int, name: str, signature: str) -> str:
    result, _, arguments = signature.partition(":")
    types = [_TYPES[letter] for letter in arguments]
    declared = ", ".join(f"{kind}a{number}" for number, kind in enumerate(types)) or "void"
    passed = ", ".join(f"a{number}" for number in range(len(types)))
    pointer = f"{_TYPES[result]}(*)({', '.join(kind.strip() for kind in types) or 'void'})"
    without = {_ERROR: "return no_python();", _NOTHING: "return;"}.get(result, "return 0;")
    call = f"(({pointer})slot)({passed});"
    return (
        f"EXPORT {_TYPES[result]}{name}({declared}) {{\n"
        f"  void *slot = enter({index});\n"
        f"  if (slot == NULL) {without}\n"
        f"  {'' if result == _NOTHING else 'return '}{call}\n"
        "}"
    )
