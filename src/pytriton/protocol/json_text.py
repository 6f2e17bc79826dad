# SPDX-License-Identifier: Apache-2.0
"""Parses and writes JSON, with the error texts and the leniency of Triton's parser, RapidJSON.

orjson is used first. A text that it rejects (NaN and Infinity, bytes that are not UTF-8, a byte
order mark, syntax errors) is parsed again with the slower standard library, whose errors are
translated: clients and tests compare RapidJSON's texts and positions. Bytes that are not UTF-8
become surrogate escapes. As in Triton, a member that is missing or has another type is an INTERNAL
error: status 500.
"""

from __future__ import annotations

import json
import re
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, NoReturn

import orjson

from pytriton.base.errors import InternalError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import ParameterValue

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


MAX_NESTING = 100
NESTING_ERROR = f"JSON nesting depth exceeds maximum allowed limit ({MAX_NESTING})"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A string without an end reaches to the end of the text. If it was no match, all quotation marks
# after it would be tried in turn, which takes quadratic time.
_STRING_OR_BARE_CONSTANT = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|-?Inf(?!\w)|-NaN', re.DOTALL
)
_MAX_REWRITTEN = 1 << 20  # characters; more would delay other clients
_TOO_BIG = "Number too big to be stored in double."
_TOO_DEEP = ("depth limit", "recursion limit")  # the texts of current and older orjson


class RepeatedMembers(dict[str, Any]):
    """The members of an object in which a name is repeated: the first value of each counts.

    `names` has them as often as they were written.
    """

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(reversed(pairs))
        self.names = [name for name, _ in pairs]


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    return members if len(members) == len(pairs) else RepeatedMembers(pairs)


_decoder = json.JSONDecoder()
_members_decoder = json.JSONDecoder(object_pairs_hook=_members)
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def load_json(text: Buffer) -> Any:
    """Parse a JSON document.

    Raises:
        InternalError: It is malformed; the text has the error and its byte offset, as in Triton.
        InvalidArgumentError: It is nested too deeply.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("number is infinity"):
            _refuse(_TOO_BIG, error.doc, error.pos)
        if error.msg.startswith(_TOO_DEEP):
            raise InvalidArgumentError(NESTING_ERROR) from None
    return _load_leniently(bytes(text))


def load_members(text: Buffer) -> Any:
    """Parse a JSON document like `load_json`, and notice repeated members.

    `load_json` takes the last of them, as most parsers do; Triton takes the first, or refuses them.
    """
    document = load_json(text)
    raw = bytes(text)
    if raw.count(b":") == _number_of_colons(document) and b"\\u003" not in raw:
        return document
    return _load_leniently(raw, _members_decoder)


def names_in(members: dict[str, Any]) -> Iterable[str]:
    """The names of members as often as they were written."""
    return members.names if isinstance(members, RepeatedMembers) else members


def _number_of_colons(document: Any) -> int:
    """Returns the number of colons in a document without repeats: after names, and in strings.

    It is too small where arrays have strings with colons, or objects of objects have objects.
    """
    if type(document) is not dict:
        return 0
    number = len(document)
    texts = [*document]
    for value in document.values():
        if type(value) is str:
            texts.append(value)
        elif type(value) is dict:
            number += len(value)
            texts += value
            texts += [member for member in value.values() if type(member) is str]
    return number + "".join(texts).count(":")


def dump_json(value: object) -> bytes:
    """Encode `value` as compact JSON. Strings may have surrogate escapes; floats must be finite."""
    try:
        return orjson.dumps(value)
    except TypeError:  # a string that is not UTF-8
        return dump_json_leniently(value)


def dump_json_leniently(value: object) -> bytes:
    """Like `dump_json`, but writes NaN and infinities like Triton; orjson writes null."""
    return _encoder.encode(value).encode("utf-8", "surrogateescape")


def is_utf8(text: str) -> bool:
    """Returns whether `text` has no surrogate escapes, so that it can be encoded as UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _load_leniently(raw: bytes, decoder: json.JSONDecoder = _decoder) -> Any:
    if raw.startswith(_BYTE_ORDER_MARK):
        raw = b"   " + raw[3:]  # RapidJSON skips it; blanks keep the offsets
    text = raw.decode("utf-8", "surrogateescape")
    try:
        value = _decode(text, decoder)
    except json.JSONDecodeError as error:
        _refuse_lone_surrogates(error.doc[: error.pos])
        words, position = rapidjson_error(error)
        _refuse(words, error.doc, position)
    except RecursionError:
        raise InvalidArgumentError(NESTING_ERROR) from None
    except ValueError:  # an integer with more digits than Python converts
        _refuse(_TOO_BIG, text, 0)
    _refuse_lone_surrogates(text)
    return value


def _decode(text: str, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(text)
    except json.JSONDecodeError as error:
        is_constant = text.startswith(("Inf", "-Inf", "-NaN"), error.pos)
        if not is_constant or len(text) > _MAX_REWRITTEN:
            raise
    return decoder.decode(_STRING_OR_BARE_CONSTANT.sub(_full_constant, text))


def _full_constant(match: re.Match[str]) -> str:
    found = match[0]
    if found[0] == '"':
        return found
    return "NaN" if found == "-NaN" else f"{found}inity"


def _refuse_lone_surrogates(text: str) -> None:
    position = lone_surrogate(text)
    if position is not None:
        _refuse("The surrogate pair in string is invalid.", text, position)


def _refuse(words: str, text: str, position: int) -> NoReturn:
    offset = len(text[:position].encode("utf-8", "surrogateescape"))
    raise InternalError(f"failed to parse the request JSON buffer: {words} at {offset}")


_MAX_UNSIGNED = 2**64 - 1


def access_error(kind: str) -> str:
    """Returns Triton's text for a value that is not a `kind`."""
    if kind == "number":
        return "attempt to access JSON non-number as double"
    return f"attempt to access JSON non-{kind} as {kind}"


def member_error(
    container: dict[str, Any], key: str, kind: str, action: str = "parse"
) -> InternalError:
    """Returns the error for `container[key]` if it is missing or not a `kind`."""
    if key in container:
        return InternalError(f"Unable to {action} '{key}': {access_error(kind)}")
    return InternalError(
        f"Unable to {action} '{key}': attempt to access non-existing object member '{key}'"
    )


def unsigned_member(container: dict[str, Any], key: str, action: str = "parse") -> int:
    value = container.get(key)
    if type(value) is not int or not 0 <= value <= _MAX_UNSIGNED:
        raise member_error(container, key, "unsigned-integer", action)
    return value


def boolean_member(container: dict[str, Any], key: str) -> bool:
    value = container.get(key)
    if type(value) is not bool:
        raise member_error(container, key, "boolean")
    return value


def text_member(container: dict[str, Any], key: str) -> str:
    value = container.get(key)
    if type(value) is not str:
        raise member_error(container, key, "string")
    return utf8(value, key)


def utf8(text: str, key: str) -> str:
    """Returns `text`, which may be logged and sent; InvalidArgumentError if it is not UTF-8."""
    if not is_utf8(text):
        raise InvalidArgumentError(f"expected UTF-8 text for '{key}', got {text!a}")
    return text


def parameter_value(key: str, value: Any) -> ParameterValue:
    """Returns a request parameter for models; an integer beyond 64 signed bits becomes a double."""
    utf8(key, "parameters")
    kind = type(value)
    if kind is str:
        return utf8(value, key)
    if kind is int and not -(2**63) <= value < 2**63:
        return _double(key, value)
    if kind is int or kind is bool or kind is float:
        return value  # type: ignore[no-any-return]  # its type was just checked
    raise InvalidArgumentError(
        f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
    )


def _double(key: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgumentError(
            f"parameter '{key}' is too big to be stored in double."
        ) from None


def refuse_reserved(key: str) -> None:
    if key.startswith("triton_"):
        raise InvalidArgumentError(
            "parameter keys starting with 'triton_' are reserved for Triton usage "
            "and should not be specified."
        )


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
