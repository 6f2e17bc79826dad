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

from pytriton.errors import InternalError, InvalidArgumentError
from pytriton.wire.json_errors import lone_surrogate, rapidjson_error

if TYPE_CHECKING:
    from pytriton.dtypes import Buffer

MAX_NESTING = 100
NESTING_ERROR = f"JSON nesting depth exceeds maximum allowed limit ({MAX_NESTING})"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_STRING_OR_BARE_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*"|-?Inf(?!\w)|-NaN', re.DOTALL)
_MAX_REWRITTEN = 1 << 20  # characters; more would delay other clients
_TOO_BIG = "Number too big to be stored in double."
_TOO_DEEP = ("depth limit", "recursion limit")  # the texts of current and older orjson

_decoder = json.JSONDecoder()
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


def _load_leniently(raw: bytes) -> Any:
    if raw.startswith(_BYTE_ORDER_MARK):
        raw = b"   " + raw[3:]  # RapidJSON skips it; blanks keep the offsets
    text = raw.decode("utf-8", "surrogateescape")
    try:
        value = _decode(text)
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


def _decode(text: str) -> Any:
    try:
        return _decoder.decode(text)
    except json.JSONDecodeError as error:
        is_constant = text.startswith(("Inf", "-Inf", "-NaN"), error.pos)
        if not is_constant or len(text) > _MAX_REWRITTEN:
            raise
    return _decoder.decode(_STRING_OR_BARE_CONSTANT.sub(_full_constant, text))


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
