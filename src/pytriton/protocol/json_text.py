# SPDX-License-Identifier: Apache-2.0
"""Parses and writes JSON, with the error texts and the leniency of Triton's parser.

orjson is used first. A text that it rejects (NaN and Infinity, bytes that are not UTF-8, a byte
order mark, syntax errors) is parsed again with the slower standard library. Bytes that are not
UTF-8 become surrogate escapes.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

import orjson

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.protocol.json_errors import lone_surrogate, rapidjson_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.base.dtypes import Buffer

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
    """How many colons a document has in which nothing is repeated: after names, and in strings.

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
