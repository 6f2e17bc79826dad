# SPDX-License-Identifier: Apache-2.0
"""How a worker on another machine and its server prove to each other that they belong together.

Both know the token of this start of the worker, which is never sent. Each side chooses a nonce, and
proves the token by an HMAC over both nonces and all that was said. Neither side reads or writes a
socket here. What follows the handshake on the connection is not protected by it.

    server                               worker
      │ Greeting(versions, nonce) ────────► │
      │ ◄──────────── Hello(identity, nonce), proof │
      │ Welcome(proof) or Refused(reason) ► │
"""

from __future__ import annotations

import functools
import hmac
import secrets
import struct
from importlib import metadata

import msgspec

from pytriton.base.errors import sendable_text

# Raised when a worker of the last version could not understand the frames of this one.
PROTOCOL = 2
# All messages are short. A peer that has proved nothing must not make us read more than this.
MAX_HANDSHAKE_BYTES = 4096
_MAX_REASON_CHARACTERS = 500
_NONCE_BYTES = 32  # new for each connection, so that no recorded proof is valid again
_LENGTH = struct.Struct("<I")
# A proof is over a text that begins with the role, so that no side accepts its own proof.
_WORKER_ROLE = b"pytriton worker\0"
_SERVER_ROLE = b"pytriton server\0"


class HandshakeError(Exception):
    """The peer does not speak the protocol, or cannot prove the token."""


class WorkerRefusedError(HandshakeError):
    """The server does not want this worker; the text is its reason."""


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The identity of a worker. Later versions only append fields."""

    start: str  # the name of this start of the instance; see `StartOrder`
    node_id: str  # the node that it runs on
    pid: int
    rank: int  # its place in the group of processes that are one instance
    version: str  # the version of pytriton on its node
    protocol: int  # the number of the protocol of that version
    nonce: bytes  # chosen for this connection


class _Greeting(msgspec.Struct, tag="greeting", array_like=True):
    version: str
    protocol: int
    nonce: bytes


class _Proved(msgspec.Struct, tag="hello", array_like=True):
    """A `Hello` as it was encoded, so that fields of later versions are proved, too."""

    hello: bytes
    proof: bytes


class _Welcome(msgspec.Struct, tag="welcome", array_like=True):
    proof: bytes


class _Refused(msgspec.Struct, tag="refused", array_like=True):
    reason: str


_Answer = _Welcome | _Refused
# Bytes that are no such record, wrong UTF-8, and fields of later versions that nest too deep.
_UNREADABLE = (ValueError, RecursionError)
_encode = msgspec.msgpack.encode
_greetings = msgspec.msgpack.Decoder(_Greeting)
_proved = msgspec.msgpack.Decoder(_Proved)
_hellos = msgspec.msgpack.Decoder(Hello)
_answers: msgspec.msgpack.Decoder[_Answer] = msgspec.msgpack.Decoder(_Answer)


@functools.cache  # a connection that has proved nothing must not make us read files
def pytriton_version() -> str:
    """Returns the version of pytriton that runs here."""
    return metadata.version("pytriton")


class _Message:
    """Collects the bytes of one message, and of nothing that follows it."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def wanted_bytes(self) -> int:
        data = self._data
        if len(data) < _LENGTH.size:
            return _LENGTH.size - len(data)
        length: int = _LENGTH.unpack_from(data)[0]
        return _LENGTH.size + length - len(data)

    def feed(self, data: bytes) -> bytes | None:
        """Returns the message without its length when it is complete."""
        self._data += data
        if len(self._data) < _LENGTH.size:
            return None
        length: int = _LENGTH.unpack_from(self._data)[0]
        if length > MAX_HANDSHAKE_BYTES - _LENGTH.size:
            raise HandshakeError(
                f"expected a message of at most {MAX_HANDSHAKE_BYTES} bytes as pytriton's workers "
                f"send it, got one that begins with {bytes(self._data[:16])!r}"
            )
        wanted = self.wanted_bytes
        if wanted < 0:
            raise HandshakeError(f"got {-wanted} bytes after a message that has to be answered")
        return None if wanted else bytes(self._data[_LENGTH.size :])


def _pack(record: msgspec.Struct) -> bytes:
    data = _encode(record)
    return _LENGTH.pack(len(data)) + data


def _prove(token: str, role: bytes, greeting: bytes, said: bytes) -> bytes:
    # The length keeps the two parts apart.
    text = b"".join([role, _LENGTH.pack(len(greeting)), greeting, said])
    return hmac.digest(token.encode(), text, "sha256")


class ServerHandshake:
    """The server's side of one connection.

    Send `greeting`, give what arrives to `feed` until it returns the hello, and find the token of
    that start. If `is_proved` with it and the worker is wanted, send `welcome`; else `refusal`.
    """

    def __init__(self, version: str | None = None, protocol: int = PROTOCOL) -> None:
        self._version = pytriton_version() if version is None else version
        self._protocol = protocol
        self._greeting = _pack(
            _Greeting(self._version, protocol, secrets.token_bytes(_NONCE_BYTES))
        )
        self._message = _Message()
        self._proved: _Proved | None = None

    def greeting(self) -> bytes:
        """Returns the first message of the server."""
        return self._greeting

    @property
    def wanted_bytes(self) -> int:
        """The number of missing bytes of the hello, as far as it is known."""
        return self._message.wanted_bytes

    def feed(self, data: bytes) -> Hello | None:
        """Returns the worker's hello when it is complete; it is not proved yet.

        Raises:
            HandshakeError: This is no hello, or more follows it.
        """
        message = self._message.feed(data)
        if message is None:
            return None
        try:
            self._proved = _proved.decode(message)
            hello = _hellos.decode(self._proved.hello)
        except _UNREADABLE as error:
            raise HandshakeError(f"expected the hello of a worker: {error}") from error
        return hello

    def is_proved(self, token: str) -> bool:
        """Returns whether the worker that said hello knows the token."""
        if self._proved is None or not token:  # an empty token would be known to everybody
            return False
        proof = _prove(token, _WORKER_ROLE, self._greeting, self._proved.hello)
        return hmac.compare_digest(proof, self._proved.proof)

    def version_problem(self, hello: Hello, node: str) -> str:
        """Returns in words that the worker's version is another than the server's; "" if not."""
        if (hello.version, hello.protocol) == (self._version, self._protocol):
            return ""
        return (
            f"node {node} has pytriton {hello.version} (protocol {hello.protocol}), the server has "
            f"pytriton {self._version} (protocol {self._protocol}): install the same version on "
            "all nodes"
        )

    def welcome(self, token: str) -> bytes:
        """Returns the answer to a worker that is proved and wanted; frames follow it."""
        assert self._proved is not None, "the worker has not said hello"
        # Over the worker's own proof, too, so that the answer belongs to this hello alone.
        said = self._proved.hello + self._proved.proof
        return _pack(_Welcome(_prove(token, _SERVER_ROLE, self._greeting, said)))

    def refusal(self, reason: str) -> bytes:
        """Returns the answer to any other worker, whatever it said; then close the connection."""
        return _pack(_Refused(sendable_text(reason[:_MAX_REASON_CHARACTERS])))

    def __repr__(self) -> str:
        return f"<ServerHandshake wanted_bytes={self.wanted_bytes}>"


class ClientHandshake:
    """The worker's side of one connection; the arguments are those of its `Hello`.

    Read `wanted_bytes` and no more (frames follow), give them to `feed`, and send what it returns,
    until `is_welcome`.
    """

    def __init__(
        self,
        token: str,
        *,
        start: str,
        node_id: str,
        pid: int,
        rank: int = 0,
        version: str | None = None,
        protocol: int = PROTOCOL,
    ) -> None:
        if not token:
            raise ValueError("expected the token of this start, got an empty one")
        version = pytriton_version() if version is None else version
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._token = token
        self._hello = _encode(Hello(start, node_id, pid, rank, version, protocol, nonce))
        self._message = _Message()
        self._greeting: bytes | None = None
        self._proof = b""
        self.is_welcome = False

    @property
    def wanted_bytes(self) -> int:
        """The number of bytes to read next; 0 after the handshake."""
        return 0 if self.is_welcome else self._message.wanted_bytes

    def feed(self, data: bytes) -> bytes:
        """Returns what to send now, which may be nothing.

        Raises:
            RefusedError: The server does not want this worker.
            HandshakeError: This is not the server that started this worker.
        """
        if self.is_welcome:
            raise HandshakeError("the handshake is over, frames follow it")
        message = self._message.feed(data)
        if message is None:
            return b""
        self._message = _Message()
        if self._greeting is None:
            return self._on_greeting(message)
        self._on_answer(message, self._greeting)
        return b""

    def _on_greeting(self, message: bytes) -> bytes:
        try:
            _greetings.decode(message)
        except _UNREADABLE as error:
            raise HandshakeError(f"expected the greeting of a server: {error}") from error
        self._greeting = _LENGTH.pack(len(message)) + message
        self._proof = _prove(self._token, _WORKER_ROLE, self._greeting, self._hello)
        return _pack(_Proved(self._hello, self._proof))

    def _on_answer(self, message: bytes, greeting: bytes) -> None:
        try:
            answer = _answers.decode(message)
        except _UNREADABLE as error:
            raise HandshakeError(f"expected a server's answer: {error}") from error
        if isinstance(answer, _Refused):
            raise WorkerRefusedError(answer.reason)
        proof = _prove(self._token, _SERVER_ROLE, greeting, self._hello + self._proof)
        if not hmac.compare_digest(proof, answer.proof):
            raise HandshakeError("the server does not know the token of this start")
        self.is_welcome = True

    def __repr__(self) -> str:
        return f"<ClientHandshake is_welcome={self.is_welcome}>"
