# SPDX-License-Identifier: Apache-2.0
"""Random changes of valid inputs: of bytes, of documents in JSON, and of protobuf's fields."""

from __future__ import annotations

import json
import random
from typing import Any

NUMBERS = (
    0, 1, -1, 2, 7, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64,
    -(2**31), -(2**63), -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, 1e-320,
)  # fmt: skip
TEXTS = (
    "", " ", "a", "x", "y", "0", "-1", "true", "\0", "\n", '"', "\\", "\x7f", "\u00e9", "\u2028",
    "\U0001f600", "\ud83d", "%s", "{0}", "../x", "a/b", "FP32", "BYTES", "INT64", "priority",
    "sequence_id", "shared_memory_region", "binary_data_size", "A" * 300,
)  # fmt: skip
# Texts that are no JSON, or numbers that not all readers take.
RAW_JSON = (
    b"NaN", b"-Infinity", b"Infinity", b"01", b"1.", b".5", b"+1", b"1e999", b"-0", b"1E400",
    b"'a'", b"\xff", b'"\xff"', b'"\\ud800"', b'"\\u12"', b"tru", b"[", b"{", b"[1,]", b'{"a":1,}',
    b'{"a":1,"a":2}', b"//", b"9" * 400, b'"\t"', b'"\\x"', b"\xef\xbb\xbf{}", b"[[[[[[[[]]]]]]]]",
)  # fmt: skip


def mutate_bytes(  # noqa: PLR0911  one for each kind of change
    source: random.Random, text: bytes, tokens: tuple[bytes, ...] = ()
) -> bytes:
    """Returns a text with one change: a byte, a part that is missing or twice, or a token."""
    if not text:
        return source.randbytes(source.randrange(1, 9))
    at = source.randrange(len(text))
    end = min(len(text), at + source.choice((1, 1, 2, 4, 16, 100)))
    kind = source.randrange(6 if tokens else 5)
    if kind == 0:
        return text[:at] + bytes((text[at] ^ 1 << source.randrange(8),)) + text[at + 1 :]
    if kind == 1:
        return text[:at] + text[end:]
    if kind == 2:
        return text[:end] + text[at:end] * source.choice((1, 1, 3)) + text[end:]
    if kind == 3:
        return text[:at] + source.randbytes(source.choice((1, 2, 8))) + text[at:]
    if kind == 4:
        return text[:at]
    return text[:at] + source.choice(tokens) + text[source.choice((at, end)) :]


def random_value(source: random.Random, depth: int = 3) -> Any:
    """Returns any value that JSON has; mostly a small one."""
    kind = source.randrange(7 if depth else 5)
    if kind == 0:
        return source.choice(NUMBERS)
    if kind == 1:
        return source.choice(TEXTS)
    if kind < 5:
        return source.choice((None, True, False, 1, "a", [], {}))
    count = source.choice((0, 1, 2, 5))
    if kind == 5:
        return [random_value(source, depth - 1) for _ in range(count)]
    return {source.choice(TEXTS): random_value(source, depth - 1) for _ in range(count)}


def mutate_document(source: random.Random, document: Any, names: tuple[str, ...] = ()) -> Any:
    """Returns a copy of a document with one change, at a place of any depth.

    `names` are members that mean something to the reader of the document.
    """
    if isinstance(document, dict) and document and source.random() < 0.75:
        key = source.choice(list(document))
        return {**document, key: mutate_document(source, document[key], names)}
    if isinstance(document, list) and document and source.random() < 0.75:
        at = source.randrange(len(document))
        return [*document[:at], mutate_document(source, document[at], names), *document[at + 1 :]]
    if isinstance(document, dict):
        return _mutate_object(source, document, names)
    if isinstance(document, list) and source.random() < 0.7:
        other = random_value(source)
        return source.choice(
            (document * 2, document[1:], [*document, other], [document], document * 50, [])
        )
    return random_value(source)


def _mutate_object(source: random.Random, document: dict[str, Any], names: tuple[str, ...]) -> Any:
    key = source.choice(list(document)) if document else ""
    kind = source.randrange(5)
    if kind == 0:
        return {name: value for name, value in document.items() if name != key}
    if kind == 1:
        return {**document, source.choice(names or TEXTS): random_value(source)}
    if kind == 2:
        return {**document, source.choice(TEXTS): random_value(source)}
    if kind == 3 and names:
        return {**document, source.choice(names): document.get(key)}
    return random_value(source)


def encodable(value: Any) -> Any:
    """A document without what MessagePack cannot have."""
    if isinstance(value, dict):
        return {encodable(key): encodable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [encodable(each) for each in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return 0
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value


def write_document(source: random.Random, document: Any) -> bytes:
    """Returns the text of a document, which may be in one of JSON's other forms, or broken."""
    separators = source.choice(((",", ":"), (",", ":"), (", ", ": "), (" ,\n", "\t:")))
    is_ascii = source.random() < 0.5
    text = json.dumps(document, separators=separators, ensure_ascii=is_ascii)
    encoded = text.encode("utf-8", "surrogatepass")
    if source.random() < 0.15:
        for _ in range(source.choice((1, 1, 2))):
            encoded = mutate_bytes(source, encoded, RAW_JSON)
    return encoded


# Protobuf's wire format: https://protobuf.dev/programming-guides/encoding/

VARINT, FIXED64, LENGTH, START_GROUP, END_GROUP, FIXED32 = range(6)


def varint(number: int, pad_bytes: int = 0) -> bytes:
    """Returns a number of protobuf, perhaps longer than it has to be."""
    number &= 2**64 - 1
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    for _ in range(pad_bytes):
        encoded[-1] |= 0x80
        encoded.append(0)
    return bytes(encoded)


def field(number: int, kind: int, content: bytes) -> bytes:
    length = varint(len(content)) if kind == LENGTH else b""
    return varint(number << 3 | kind) + length + content


def split_fields(message: bytes) -> list[tuple[int, int, bytes]]:
    """Returns the fields of a valid message that has no groups."""
    fields = []
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == VARINT:
            start = at
            _, at = _read_varint(message, at)
            content = message[start:at]
        elif kind == LENGTH:
            size, at = _read_varint(message, at)
            content = message[at : at + size]
            at += size
        else:
            size = 8 if kind == FIXED64 else 4
            content = message[at : at + size]
            at += size
        fields.append((tag >> 3, kind, content))
    return fields


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (message[at] & 0x7F) << shift
        shift += 7
        at += 1
        if message[at - 1] < 0x80:
            return number, at


def mutate_message(source: random.Random, message: bytes, depth: int = 4) -> bytes:
    """Returns a message with one change of its fields, or of those of a message in it."""
    try:
        fields = split_fields(message)
    except IndexError:
        return mutate_bytes(source, message)
    if any(number == 0 for number, _, _ in fields) or not fields:
        return mutate_bytes(source, message)
    at = source.randrange(len(fields))
    number, kind, content = fields[at]
    choice = source.randrange(12)
    if kind == LENGTH and depth and choice < 6:
        changed = [field(number, kind, mutate_message(source, content, depth - 1))]
    else:
        changed = _changed_field(source, number, kind, content)
    before = [field(*each) for each in fields[:at]]
    after = [field(*each) for each in fields[at + 1 :]]
    return b"".join((*before, *changed, *after))


def _changed_field(source: random.Random, number: int, kind: int, content: bytes) -> list[bytes]:
    whole = field(number, kind, content)
    random_number = source.choice(NUMBERS)
    value = varint(int(random_number) & 2**64 - 1, source.choice((0, 0, 1, 9, 12)))
    other_number = source.choice((0, 1, 2, 3, 4, 5, 6, 7, 19_000, 2**29 - 1, 2**29))
    group = varint(number << 3 | START_GROUP)
    return source.choice(
        (
            list,
            lambda: [whole] * source.choice((2, 3, 40)),
            lambda: [field(number, VARINT, value)],
            lambda: [field(number, LENGTH, value * source.choice((0, 1, 20)))],
            lambda: [field(number, FIXED32, source.randbytes(4))],
            lambda: [field(number, FIXED64, source.randbytes(8))],
            lambda: [group, whole, varint(number << 3 | END_GROUP)],
            lambda: [group * source.choice((1, 200))],
            lambda: [varint(number << 3 | END_GROUP)],
            lambda: [field(other_number, source.randrange(8), content), whole],
            lambda: [varint(number << 3 | LENGTH), value, content],
            lambda: [varint(number << 3 | kind, source.choice((1, 5, 12))), whole],
            lambda: [field(number, kind, mutate_bytes(source, content))],
            lambda: [whole, source.randbytes(source.randrange(1, 12))],
        )
    )()
