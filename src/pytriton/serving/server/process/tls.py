# SPDX-License-Identifier: Apache-2.0
"""The certificates of encrypted ports: read from files, checked, and read again when these change.

A new context is for new handshakes; connections that are open keep theirs. How a connection is
encrypted is in `tls_connection.py`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytriton.base.background_tasks import call_driver
from pytriton.base.errors import UnavailableError
from pytriton.serving.server.api.turns import Turns
from pytriton.serving.server.process.resources import usable_cores
from pytriton.serving.server.process.tls_handshakes import HANDSHAKE_FAILURES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from pytriton.serving.server.options.server_options import TlsOptions

    _Look = tuple["TlsFiles", "_Loaded | UnavailableError | None"]

logger = logging.getLogger(__name__)

# What a port offers by ALPN (RFC 7301), the preferred one first.
HTTP_PROTOCOLS = ["h2", "http/1.1"]
GRPC_PROTOCOLS = ["h2"]

CHECK_INTERVAL_S = 1.0
EXPIRY_WARNING_S = 7 * 86400.0
# A handshake takes OpenSSL 0.2 to 2 ms, by the kind of the key. More threads than this would take
# the processor from the event loop while many clients connect.
_MAX_THREADS = 4
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY_MODES = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_EXPIRES_SOON = "the certificate in %s expires within 7 days"
_HAS_EXPIRED = "the certificate in %s has expired"
_FileState = tuple[int, int, int, int] | str  # what changes with a file, or why it cannot be read


def load_context(options: TlsOptions, protocols: Sequence[str]) -> ssl.SSLContext:
    """Returns a context for the handshakes of a port.

    Raises:
        UnavailableError: A file is missing or has something else in it; the message names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[options.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(protocols))
    _check_pem(options.server_cert, "a certificate", ("CERTIFICATE",))
    _check_key(options.server_key)
    try:
        # OpenSSL would ask at the terminal for the passphrase of an encrypted key.
        context.load_cert_chain(options.server_cert, options.server_key, password=_no_passphrase)
    except ssl.SSLError as error:
        raise UnavailableError(_load_failure(options, error)) from error
    except OSError as error:  # one of them is gone since it was checked
        files = f"{options.server_cert} and {options.server_key}"
        raise UnavailableError(f"TLS cannot use {files}: {error.strerror}") from error
    context.verify_mode = _VERIFY_MODES[options.client_auth]
    if options.root_cert is not None and options.client_auth != "none":
        _check_pem(options.root_cert, "certificates of authorities", ("CERTIFICATE",))
        try:
            context.load_verify_locations(options.root_cert)
        except (OSError, ssl.SSLError) as error:
            raise UnavailableError(
                f"TLS cannot use the certificates of authorities in {options.root_cert}: "
                f"{_reason(error)}"
            ) from error
    return context


def _no_passphrase() -> str:
    raise ValueError("the key needs a passphrase")


def _load_failure(options: TlsOptions, error: ssl.SSLError) -> str:
    if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return (
            f"TLS cannot use the key {options.server_key}: it does not belong to the certificate "
            f"{options.server_cert}"
        )
    return f"TLS cannot use {options.server_cert} and {options.server_key}: {_reason(error)}"


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)


def _check_pem(path: str, kind: str, labels: tuple[str, ...]) -> bytes:
    """Returns the file's content; raises an error that names it if it is no such PEM file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UnavailableError(f"TLS needs {kind} in {path}: {error.strerror}") from error
    if not any(f"-----BEGIN {label}-----".encode() in content for label in labels):
        found = "it is empty" if not content.strip() else "it has none in PEM format"
        raise UnavailableError(f"TLS needs {kind} in {path}: {found}")
    return content


def _check_key(path: str) -> None:
    labels = ("PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY")
    content = _check_pem(path, "a private key", labels)
    if b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in content or b"Proc-Type: 4,ENCRYPTED" in content:
        raise UnavailableError(
            f"TLS needs a private key without a passphrase in {path}: it is encrypted"
        )


def check_tls(settings: Iterable[TlsOptions | None]) -> None:
    """Raise UnavailableError if the files of a port cannot be used."""
    for options in dict.fromkeys(settings):
        if options is not None:
            load_context(options, HTTP_PROTOCOLS)


def expiry_of(path: str) -> float:
    """Returns when the first certificate of a PEM file expires, in seconds since 1970.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no certificate.
    """
    text = Path(path).read_text("latin-1")
    begin, end = text.find(ssl.PEM_HEADER), text.find(ssl.PEM_FOOTER)
    if begin < 0 or end < begin:
        raise ValueError(f"expected a certificate in PEM format in {path}")
    der = ssl.PEM_cert_to_DER_cert(text[begin : end + len(ssl.PEM_FOOTER)])
    return _not_after(der)


def _not_after(der: bytes) -> float:
    """Returns the end of the validity of a certificate (RFC 5280, 4.1)."""
    try:
        _, certificate, _ = _element(der)
        _, fields, _ = _element(certificate)  # the TBSCertificate
        tag, _, rest = _element(fields)
        if tag == 0xA0:  # the version, which may be left out; then the serial number
            _, _, rest = _element(rest)
        for _ in range(2):  # the algorithm of the signature, and the issuer
            _, _, rest = _element(rest)
        _, validity, _ = _element(rest)
        _, _, rest = _element(validity)
        tag, value, _ = _element(rest)
    except IndexError:
        raise ValueError("expected a certificate, got something shorter") from None
    text = value.decode("ascii")
    if tag == 0x17:  # UTCTime: years from 1950 to 2049 have two digits
        text = f"{'19' if text[:2] >= '50' else '20'}{text}"
    moment = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)
    return moment.timestamp()


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Returns the tag and the content of the first element in DER, and what follows it."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if len(data) < start + length:
        raise IndexError
    return tag, data[start : start + length], data[start + length :]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What was read of the files: a context for each list of protocols."""

    contexts: dict[tuple[str, ...], ssl.SSLContext]
    expiry_s: float


class TlsFiles:
    """A certificate with its key and the authorities of clients, for one or several ports.

    Attributes:
        expiry_s: When the certificate expires, in seconds since 1970.
    """

    def __init__(self, options: TlsOptions) -> None:
        self.options = options
        self.expiry_s = 0.0
        self._contexts: dict[tuple[str, ...], ssl.SSLContext] = {}
        self._used: tuple[_FileState, ...] = ()
        self._seen: tuple[_FileState, ...] = ()
        self._failure = ""

    def offer(self, protocols: tuple[str, ...]) -> None:
        """Read the files for a port that offers these protocols.

        Raises:
            UnavailableError: The files cannot be used.
        """
        self._contexts.setdefault(protocols, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._used = self._seen = self._state()
        self.use(self._load())

    def context(self, protocols: tuple[str, ...]) -> ssl.SSLContext:
        """Returns the context for new handshakes of a port."""
        return self._contexts[protocols]

    def look(self, *, is_asked: bool) -> _Loaded | UnavailableError | None:
        """Read changed files; returns an error if they cannot be used, None if none has changed.

        Programs write a certificate and its key one after the other, and some of them piece by
        piece. So changed files are read when they have been the same for two looks, unless somebody
        asks for that. This may run in a thread.
        """
        state = self._state()
        is_settled, self._seen = state == self._seen, state
        if not is_asked and (state == self._used or not is_settled):
            return None
        try:
            loaded = self._load()
        except UnavailableError as error:
            return error
        self._used = state
        return loaded

    def use(self, loaded: _Loaded) -> None:
        """Use what was read for the next handshakes."""
        self._contexts = loaded.contexts
        self.expiry_s = loaded.expiry_s
        self._failure = ""

    def is_news(self, error: UnavailableError) -> bool:
        """Returns whether a failure is not that of the last look."""
        is_news, self._failure = error.message != self._failure, error.message
        return is_news

    def _load(self) -> _Loaded:
        contexts = {each: load_context(self.options, each) for each in list(self._contexts)}
        try:
            expiry_s = expiry_of(self.options.server_cert)
        except (OSError, ValueError) as error:
            raise UnavailableError(f"TLS cannot use {self.options.server_cert}: {error}") from error
        return _Loaded(contexts, expiry_s)

    def _state(self) -> tuple[_FileState, ...]:
        options = self.options
        paths = (options.server_cert, options.server_key, options.root_cert)
        return tuple(_state_of(path) for path in paths if path is not None)


def _state_of(path: str) -> _FileState:
    """Returns what changes when a file is replaced or written, or a link to it."""
    try:
        found = Path(path).stat()  # of what links lead to: Kubernetes replaces a link
    except OSError as error:
        return error.strerror or str(error)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class TlsPorts:
    """The certificates of all encrypted ports of a process, and its threads for handshakes.

    Args:
        loop: The event loop, which looks at the files about once a second.
        is_quiet: Whether another process writes to the log about the same files.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_quiet: bool = False) -> None:
        self.turns = Turns(loop)
        self.reload_count = 0
        self.failure_count = 0
        self.handshake_failures: Counter[str] = Counter(dict.fromkeys(HANDSHAKE_FAILURES, 0))
        self._loop = loop
        self._is_quiet = is_quiet
        self._files: dict[TlsOptions, TlsFiles] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._timer: asyncio.Handle | None = None
        self._looking: asyncio.Task[list[_Look]] | None = None
        self._is_asked = False  # to read files that do not seem to have changed
        self._warnings: set[tuple[str, float]] = set()

    def port(self, options: TlsOptions, protocols: Sequence[str]) -> TlsPort:
        """Returns the certificates of a port.

        Raises:
            UnavailableError: The files cannot be used.
        """
        files = self._files.get(options)
        if files is None:
            files = TlsFiles(options)
        files.offer(tuple(protocols))
        self._files[options] = files
        self._warn_of_expiry(files)
        if self._timer is None:
            self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)
        return TlsPort(files, tuple(protocols), self)

    @property
    def threads(self) -> ThreadPoolExecutor:
        """The threads that do the work of handshakes."""
        if self._threads is None:
            count = max(1, min(_MAX_THREADS, usable_cores() // 2))
            self._threads = ThreadPoolExecutor(count, "pytriton-tls")
        return self._threads

    @property
    def files(self) -> list[TlsFiles]:
        """The files of all ports."""
        return list(self._files.values())

    def reload(self) -> None:
        """Read all files again now, whether or not they seem to have changed."""
        if self._timer is not None:
            self._is_asked = True
            self._timer.cancel()
            self._timer = self._loop.call_soon(self._check)

    def close(self) -> None:
        """Look at no more files and end the threads; this may be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._looking is not None:
            self._looking.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self) -> None:
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)
        # Files on a network drive may hang; then only a thread waits, and only one, which is no
        # one of those that others wait for.
        if self._looking is None:
            is_asked, self._is_asked = self._is_asked, False
            look = partial(_look, self.files, is_asked)
            self._looking = self._loop.create_task(call_driver(look))
            self._looking.add_done_callback(self._on_looked)

    def _on_looked(self, looking: asyncio.Future[list[_Look]]) -> None:
        self._looking = None
        if looking.cancelled():
            return
        for files, found in looking.result():
            if isinstance(found, UnavailableError):
                self._on_failure(files, found)
            elif found is not None:
                files.use(found)
                self.reload_count += 1
                self._say(
                    logging.INFO, "TLS uses the certificate in %s, which was read again", files
                )
            self._warn_of_expiry(files)

    def _on_failure(self, files: TlsFiles, error: UnavailableError) -> None:
        if files.is_news(error):
            self.failure_count += 1
            if not self._is_quiet:
                logger.error("%s; TLS goes on with what it read before", error.message)

    def _warn_of_expiry(self, files: TlsFiles) -> None:
        """Warn once for each certificate that expires soon, and once more when it has expired."""
        left_s = files.expiry_s - time.time()
        if left_s > EXPIRY_WARNING_S:
            return
        text = _EXPIRES_SOON if left_s > 0 else _HAS_EXPIRED
        if (text, files.expiry_s) not in self._warnings:
            self._warnings.add((text, files.expiry_s))
            self._say(logging.WARNING, text, files)

    def _say(self, level: int, text: str, files: TlsFiles) -> None:
        if not self._is_quiet:
            logger.log(level, text, files.options.server_cert)


def _look(all_files: list[TlsFiles], is_asked: bool) -> list[_Look]:
    return [(files, files.look(is_asked=is_asked)) for files in all_files]


@dataclass(frozen=True, slots=True)
class TlsPort:
    """What the connections of one port need: the context for a handshake, and threads for it."""

    files: TlsFiles
    protocols: tuple[str, ...]
    ports: TlsPorts

    @property
    def context(self) -> ssl.SSLContext:
        """The context of handshakes that begin now."""
        return self.files.context(self.protocols)

    @property
    def threads(self) -> ThreadPoolExecutor:
        """The threads that do the work of handshakes."""
        return self.ports.threads

    @property
    def turns(self) -> Turns:
        """The turns of the clients of all encrypted ports."""
        return self.ports.turns

    def count_failure(self, reason: str) -> None:
        """Count a client that did not complete its handshake."""
        self.ports.handshake_failures[reason] += 1
