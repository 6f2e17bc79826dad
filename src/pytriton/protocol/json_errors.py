# SPDX-License-Identifier: Apache-2.0
"""Translates errors of Python's json module to the texts and positions of RapidJSON.

RapidJSON is Triton's parser, and clients and tests compare its texts. This code runs once for an
invalid document and takes linear time at C speed, because any client may send one.
"""

from __future__ import annotations

import re
from json import JSONDecodeError, JSONDecoder

_MISSING_NAME = "Missing a name for object member."
_SAME_POSITION = {
    "Expecting property name enclosed in double quotes": _MISSING_NAME,
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Extra data": "The document root must not be followed by other values.",
    "Invalid \\escape": "Invalid escape character in string.",
}
_LITERALS = ("true", "false", "null", "NaN", "Infinity")
_WHITESPACE = re.compile(r"[ \t\n\r]*")
_NUMBER_START = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?\Z")
_LONGEST_NUMBER = 400  # characters to look back; a longer number overflows anyway
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# Text and escapes without a lone surrogate. The number of repetitions is limited because each of
# them takes memory in the regular expression engine.
_WITHOUT_LONE_SURROGATES = re.compile(
    r"(?:[^\\]+|\\[^u]|\\u(?![dD][89a-fA-F])"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}){1,1000}"
)

_decoder = JSONDecoder()


def rapidjson_error(error: JSONDecodeError) -> tuple[str, int]:
    """Returns RapidJSON's text for `error`, and the index that RapidJSON would report."""
    text, position, message = error.doc, error.pos, error.msg
    if message == "Expecting value":
        return _bad_value(text, position)
    if message in ("Expecting ',' delimiter", "Extra data"):
        unfinished = _unfinished_number(text, position)
        if unfinished is not None:
            return unfinished
    if message == "Expecting ',' delimiter":
        return _missing_comma(text, position)
    if message.startswith("Illegal trailing comma"):  # since Python 3.13; at the comma's index
        words = _MISSING_NAME if message.endswith("object") else "Invalid value."
        return words, _skip_whitespace(text, position + 1)
    words = _SAME_POSITION.get(message, "")
    return (words, position) if words else _bad_string(text, position, message)


def lone_surrogate(text: str) -> int | None:
    """Returns the index of the first escaped lone surrogate, which only Python accepts."""
    if _SURROGATE.search(text) is None:
        return None
    at = 0
    while (match := _WITHOUT_LONE_SURROGATES.match(text, at)) is not None:
        at = match.end()
    return at if _SURROGATE.match(text, at) else None


def _skip_whitespace(text: str, position: int) -> int:
    match = _WHITESPACE.match(text, position)
    return position if match is None else match.end()


def _bad_value(text: str, position: int) -> tuple[str, int]:
    if position == len(text) and not text.strip(" \t\n\r"):
        return "The document is empty.", position
    if text.startswith("-", position):
        position += 1
    for literal in _LITERALS:
        if text.startswith(literal[0], position):
            matched = 1  # RapidJSON reports the first character that differs from the literal
            while text.startswith(literal[matched : matched + 1], position + matched):
                matched += 1
            return "Invalid value.", position + matched
    return "Invalid value.", position


def _unfinished_number(text: str, position: int) -> tuple[str, int] | None:
    """Returns the error of a fraction or an exponent without digits, if there is one.

    Python's parser stops before it, as if the number ended there.
    """
    start = position
    while start and position - start < _LONGEST_NUMBER and text[start - 1] in "0123456789.eE+-":
        start -= 1
    number = _NUMBER_START.match(text[start:position])
    follower = text[position : position + 1]
    if number is None or number[2]:
        return None
    if follower == "." and not number[1]:
        return "Miss fraction part in number.", position + 1
    if follower in ("e", "E"):
        has_sign = text[position + 1 : position + 2] in ("+", "-")
        return "Miss exponent in number.", position + 1 + has_sign
    return None


def _missing_comma(text: str, position: int) -> tuple[str, int]:
    """Returns the error for an array or an object; only an array can be closed with a bracket."""
    try:
        _decoder.decode(text[:position] + "]")
    except JSONDecodeError as error:
        is_object = error.pos == position
    else:
        is_object = False
    if is_object:
        return "Missing a comma or '}' after an object member.", position
    return "Missing a comma or ']' after an array element.", position


def _bad_string(text: str, position: int, message: str) -> tuple[str, int]:
    if message.startswith("Invalid \\u"):
        return "Incorrect hex digit after \\u escape in string.", position - 1
    if message.startswith("Invalid control character") and text[position] != "\0":
        return "Invalid escape character in string.", position
    if message.startswith("Unterminated string"):
        position = len(text)
        if (position - len(text.rstrip("\\"))) % 2:
            return "Invalid escape character in string.", position - 1
    return "Missing a closing quotation mark in string.", position
