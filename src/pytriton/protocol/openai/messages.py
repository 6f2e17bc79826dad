# SPDX-License-Identifier: Apache-2.0
"""The messages of a chat: what they must look like, and what a template needs of them."""

from __future__ import annotations

import msgspec

from pytriton.protocol.openai.errors import wrong
from pytriton.protocol.openai.members import Members, decode, decode_objects

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_LIST = "a list of messages with a role and a content"
MAX_PARTS = 10_000  # messages of a chat, and parts of all of them; each costs a microsecond


class _Role(msgspec.Struct, gc=False):
    """What each message must have."""

    role: str


class _Type(msgspec.Struct, gc=False):
    """What each part of a message must have."""

    type: str


class MessagePart(msgspec.Struct):
    """A part of a message: a text, or something that only some models understand."""

    type: str
    text: str = ""
    refusal: str = ""


class Message(msgspec.Struct):
    """One message; members that only models understand are not here."""

    role: str
    content: msgspec.Raw = msgspec.Raw()  # a text or parts, which only some models understand
    tool_calls: msgspec.Raw = msgspec.Raw()


class ChatMessages(msgspec.Struct):
    """The messages of a request."""

    json: bytes  # as the client wrote them
    read: list[Message]

    def contents(self) -> list[tuple[str, str]]:
        """Returns the role and the text of each message, for a template.

        Raises:
            OpenAIError: A message has more than text.
        """
        contents = []
        left = MAX_PARTS
        for index, each in enumerate(self.read):
            text, count = _text(index, each, left)
            left -= count
            contents.append(("tool" if each.role == "function" else each.role, text))
        return contents


def take_messages(members: Members) -> ChatMessages:
    """Take the messages of a request.

    Raises:
        OpenAIError: There are none, or they are malformed.
    """
    if "messages" not in members:
        raise wrong("messages", f"expected {_LIST} as 'messages', got none")
    json = members.peek("messages")
    members.drop("messages")
    parts = decode_objects(json, _Role, "messages", _LIST, MAX_PARTS)
    if not parts:
        raise wrong("messages", f"expected {_LIST} as 'messages', got an empty list")
    read = [
        decode(part, Message, f"messages[{index}]", "an object with a role and a content")
        for index, part in enumerate(parts)
    ]
    for index, message in enumerate(read):
        if message.role not in _ROLES:
            raise wrong(
                f"messages[{index}].role",
                f"expected one of {', '.join(_ROLES)} as the role of message {index}, "
                f"got '{message.role}'",
            )
    return ChatMessages(json, read)


def _text(index: int, message: Message, most_parts: int) -> tuple[str, int]:
    """Returns the text of a message, and how many parts it has."""
    where, raw = f"messages[{index}].content", bytes(message.content)
    if raw in (b"", b"null"):
        return bytes(message.tool_calls).decode(), 0  # the only thing that such a message may say
    if not raw.startswith(b"["):
        text: str = decode(raw, str, where, "a text or a list of parts")
        return text, 0
    parts = decode_objects(raw, _Type, where, "a list of parts", MAX_PARTS)
    if len(parts) > most_parts:
        raise wrong(where, f"expected at most {MAX_PARTS} parts in all messages")
    content = [decode(part, MessagePart, where, "a part with a type") for part in parts]
    for part in content:
        if part.type not in ("text", "refusal"):
            raise wrong(
                where,
                f"expected only texts in message {index}, got a part of type '{part.type}': the "
                "model takes no messages, only a prompt",
            )
    return "".join(part.text or part.refusal for part in content), len(parts)
