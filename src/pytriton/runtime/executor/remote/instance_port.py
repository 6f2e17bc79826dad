# SPDX-License-Identifier: Apache-2.0
"""The port to which the processes of remote instances connect.

It listens on TCP and, for processes of this machine and user, on a Unix socket. Both begin with the
same handshake. A process that came over the Unix socket then gets the two sockets that a worker of
the server's own has, and shares memory with it. Who may connect is decided without I/O.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import logging
import pathlib
import secrets
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.errors import UnavailableError
from pytriton.runtime.transport.handshake import HandshakeError, Hello, ServerHandshake
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory import is_portable_forced
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.peer_account import PeerAccount
from pytriton.runtime.transport.rendezvous import is_local, is_same_user, tcp_address, unix_address
from pytriton.runtime.transport.stream_channel import StreamChannel, tune_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.runtime.executor.remote.starter import ProcessPlace
    from pytriton.runtime.transport.arena import Arena
    from pytriton.runtime.transport.channel import Channel


class StartState(enum.Enum):
    """The state of a start; the picture is above."""

    EXPECTED = enum.auto()
    PLACED = enum.auto()
    COMPLETE = enum.auto()
    REVOKED = enum.auto()


class Claim:
    """A process that has proved the token of a start, and says which of its processes it is.

    Attributes:
        is_admitted: None until that is decided.
        refusal: Why it was not admitted, as text for the process.
    """

    def __init__(self, rank: int, node_id: str, pid: int) -> None:
        self.rank = rank
        self.node_id = node_id
        self.pid = pid
        self.is_admitted: bool | None = None
        self.refusal = ""

    def __repr__(self) -> str:
        return (
            f"<Claim rank={self.rank} node={self.node_id} pid={self.pid} "
            f"admitted={self.is_admitted}>"
        )


class ExpectedStart:
    """One start of an instance, of one process or of a group."""

    def __init__(self, name: str, group_size: int = 1) -> None:
        self.name = name
        self.group_size = group_size
        self.state = StartState.EXPECTED
        self.places: tuple[ProcessPlace, ...] = ()
        self._waiting: list[Claim] = []
        self._taken: set[int] = set()

    def claim(self, rank: int, node_id: str, pid: int) -> Claim:
        """Take a process's claim; it is decided now, or by `place` or `revoke`."""
        claim = Claim(rank, node_id, pid)
        if self.state is StartState.EXPECTED and 0 <= rank < self.group_size:
            self._waiting.append(claim)
        else:
            self._decide(claim)
        return claim

    def withdraw(self, claim: Claim) -> None:
        """Forget a claim whose process has gone, if it still waits."""
        if claim in self._waiting:
            self._waiting.remove(claim)

    def place(self, places: Sequence[ProcessPlace]) -> list[Claim]:
        """Take the places of the processes, by rank, from the starter; returns the decided claims.

        Raises:
            ValueError: There is not one place for each process of the group.
        """
        if len(places) != self.group_size:
            raise ValueError(
                f"expected the places of {self.group_size} processes of '{self.name}', "
                f"got {len(places)}"
            )
        if self.state is not StartState.EXPECTED:
            return []
        self.places = tuple(places)
        self.state = StartState.PLACED
        return self._decide_waiting()

    def revoke(self) -> list[Claim]:
        """Admit no process any more; returns the claims that waited, which are refused."""
        self.state = StartState.REVOKED
        return self._decide_waiting()

    def check_integrity(self) -> None:
        """Raise AssertionError if the state contradicts the claims. Changes nothing.

        Claims wait only before the places are known, every place that was taken is one of the
        group, and a start is complete if all are taken.
        """
        assert not self._waiting or self.state is StartState.EXPECTED, (
            f"{len(self._waiting)} claims wait in state {self.state.name}"
        )
        assert self._taken <= set(range(self.group_size)), f"the ranks {self._taken} were taken"
        is_full = len(self._taken) == self.group_size
        assert self.state is StartState.REVOKED or is_full == (self.state is StartState.COMPLETE), (
            f"{len(self._taken)} of {self.group_size} places are taken in {self.state.name}"
        )

    def __repr__(self) -> str:
        return f"<ExpectedStart {self.name} {self.state.name} waiting={len(self._waiting)}>"

    def _decide_waiting(self) -> list[Claim]:
        waiting, self._waiting = self._waiting, []
        for claim in waiting:
            self._decide(claim)
        return waiting

    def _decide(self, claim: Claim) -> None:
        claim.refusal = self._refusal(claim)
        claim.is_admitted = not claim.refusal
        if claim.is_admitted:
            self._taken.add(claim.rank)
            if len(self._taken) == self.group_size:
                self.state = StartState.COMPLETE

    def _refusal(self, claim: Claim) -> str:
        """Returns why a claim is refused; "" if it is admitted."""
        if self.state is StartState.REVOKED:
            return f"'{self.name}' is not expected any more"
        if not 0 <= claim.rank < self.group_size:
            return f"'{self.name}' has {self.group_size} processes, so none of rank {claim.rank}"
        place = self.places[claim.rank]
        if (claim.node_id, claim.pid) != (place.node_id, place.pid):
            return (
                f"'{self.name}' is process {place.pid} of node {place.node_id}, "
                f"not process {claim.pid} of node {claim.node_id}"
            )
        if claim.rank in self._taken:
            return f"process {claim.pid} of '{self.name}' was connected before"
        return ""


logger = logging.getLogger(__name__)

_BACKLOG = 512
MAX_UNPROVEN = 64
_LINE_INTERVAL_S = 1.0
HELLO_TIMEOUT_S = 10.0
_READ_BYTES = 4096
_ACCEPT_PAUSE_S = 1.0
_GONE = (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR)  # the client is gone again


def listen_tcp(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on an address, or on all if it is not of this machine.

    Raises:
        OSError: The port is in use, or the address is unknown.
    """
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    where = address[0] if is_local(host) else ""  # "": all
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A server that is started again must not wait for the old connections to be forgotten.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((where, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class PrivateListener:
    """A Unix socket with a random name, for processes of this user.

    Raises:
        OSError: There can be none.
    """

    def __init__(self) -> None:
        self._folder: pathlib.Path | None = None
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            name = self._choose_name()
            self.address = unix_address(name)
            self.socket.bind(name)
            self.socket.listen(_BACKLOG)
            self.socket.setblocking(False)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket, and remove its file."""
        self.socket.close()
        if self._folder is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder)

    def __repr__(self) -> str:
        return f"<PrivateListener {self.address}>"

    def _choose_name(self) -> str:
        if sys.platform == "linux" and not is_portable_forced():
            return f"\0pytriton-instances/{secrets.token_hex(8)}"
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="pytriton-"))  # for this user only
        return str(self._folder / "s")


class UnprovenConnections:
    """Connections without a proof of their token yet.

    If there are too many, the oldest has to go. A worker proves itself within milliseconds, so that
    it gets in however many connections others open and keep silent.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sockets: dict[socket.socket, None] = {}  # a set that keeps their order
        self._next_line_s = 0.0
        self._unsaid = 0

    def __len__(self) -> int:
        return len(self._sockets)

    def add(self, sock: socket.socket) -> None:
        """Take a new connection; the oldest one may be ended for it."""
        if len(self._sockets) >= MAX_UNPROVEN:
            oldest = next(iter(self._sockets))
            del self._sockets[oldest]
            with contextlib.suppress(OSError):  # the other end has closed it
                oldest.shutdown(socket.SHUT_RDWR)
        self._sockets[sock] = None

    def remove(self, sock: socket.socket) -> None:
        """Forget a connection that is known now, or closed."""
        self._sockets.pop(sock, None)

    def warn(self, text: str) -> None:
        """Log what is wrong with a connection; a flood of them must not become one of lines."""
        now_s = self._clock()
        if now_s < self._next_line_s:
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} others before)" if self._unsaid else ""
        logger.warning("%s%s", text, more)
        self._unsaid = 0
        self._next_line_s = now_s + _LINE_INTERVAL_S

    def __repr__(self) -> str:
        return f"<UnprovenConnections {len(self)}>"


@dataclass(frozen=True, slots=True)
class RemoteLink:
    """The connection of an admitted process."""

    sock: socket.socket
    fork_socket: socket.socket | None  # None: it came over TCP, and its forks cannot connect

    def open_channel(self, arena: Arena) -> Channel:
        """Returns the channel to the process; large tensors are shared if both can."""
        if self.fork_socket is None:
            return StreamChannel(self.sock, PeerAccount())
        return MemoryChannel(self.sock, arena, account=PeerAccount())

    def close(self) -> None:
        """Close the sockets, if no channel has taken them."""
        self.sock.close()
        if self.fork_socket is not None:
            self.fork_socket.close()


class Ticket:
    """The expected and the connected processes of one start."""

    def __init__(self, port: InstancePort, token: str, start: ExpectedStart) -> None:
        self.token = token
        self.start = start
        self._port = port
        self._links: dict[int, RemoteLink] = {}
        self._complete: asyncio.Future[None] = port.loop.create_future()
        self._decided: dict[Claim, asyncio.Future[None]] = {}

    def admit(self, places: Sequence[ProcessPlace]) -> None:
        """Admit the processes that the starter has told about, by rank."""
        self._wake(self.start.place(places))

    async def connected(self) -> None:
        """Wait until all processes are connected.

        Raises:
            UnavailableError: The right process came, but cannot be an instance, or it is not
                expected any more.
        """
        await asyncio.shield(self._complete)

    def take(self) -> list[RemoteLink]:
        """Returns the connections of all processes, by rank; the caller closes them."""
        return [self._links.pop(rank) for rank in range(self.start.group_size)]

    def revoke(self) -> None:
        """Admit no process any more, and close the connections that were not taken."""
        self._wake(self.start.revoke())
        self._port.forget(self)
        self.fail(f"'{self.start.name}' is not expected any more")
        for link in self._links.values():
            link.close()
        self._links.clear()

    async def claim(self, hello: Hello) -> Claim:
        """Wait until the claim of a proved process is decided."""
        claim = self.start.claim(hello.rank, hello.node_id, hello.pid)
        if claim.is_admitted is None:
            decided = self._decided[claim] = self._port.loop.create_future()
            try:
                await decided
            finally:
                self._decided.pop(claim, None)
                self.start.withdraw(claim)
        return claim

    def fail(self, reason: str) -> None:
        """End the wait for the connection, as there will be none that can be used."""
        if not self._complete.done():
            self._complete.set_exception(UnavailableError(reason))
            self._complete.exception()  # marks it as retrieved, as there may be no waiter

    def add(self, rank: int, link: RemoteLink) -> None:
        """Take the connection of an admitted process."""
        if self._complete.done():
            link.close()
            return
        self._links[rank] = link
        if len(self._links) == self.start.group_size:
            self._complete.set_result(None)

    def __repr__(self) -> str:
        return f"<Ticket {self.start!r} connected={len(self._links)}>"

    def _wake(self, claims: list[Claim]) -> None:
        for claim in claims:
            decided = self._decided.get(claim)
            if decided is not None and not decided.done():
                decided.set_result(None)


class InstancePort:
    """Listens for the processes of instances that were started elsewhere.

    Other machines reach this one under `host`. The port, or any that is free if it is 0, listens on
    this address, or on all if it is not one of this machine's own (behind a NAT, for example).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int = 0) -> None:
        self.loop = loop
        self.port = port
        self._host = host
        self._tickets: dict[str, Ticket] = {}
        self._listeners: list[socket.socket] = []
        self._private: PrivateListener | None = None
        self._is_accepting = False
        self._unproven = UnprovenConnections(loop.time)
        self._tasks = BackgroundTasks(loop)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where processes connect to, the best first."""
        tcp = tcp_address(self._host, self.port)
        return (tcp,) if self._private is None else (self._private.address, tcp)

    async def open(self) -> None:
        """Start to listen.

        Raises:
            UnavailableError: The port is in use, or the address is unknown.
        """
        try:
            listener = listen_tcp(self._host, self.port)
        except OSError as error:
            raise UnavailableError(
                f"Cannot listen for instances on {self._host}:{self.port}: {error}"
            ) from error
        self.port = listener.getsockname()[1]
        self._listeners.append(listener)
        try:
            self._private = PrivateListener()
            self._listeners.append(self._private.socket)
        except OSError as error:  # processes of this machine then come over TCP, too
            logger.warning("instances of this machine share no memory: %s", error)
        self._accept_more()

    def expect(self, name: str, token: str, group_size: int = 1) -> Ticket:
        """Expect the processes of a start; the token is a secret that they prove to know."""
        ticket = Ticket(self, token, ExpectedStart(name, group_size))
        self._tickets[name] = ticket
        return ticket

    def forget(self, ticket: Ticket) -> None:
        """Forget a start; its processes are not expected from now on."""
        if self._tickets.get(ticket.start.name) is ticket:
            del self._tickets[ticket.start.name]

    async def close(self) -> None:
        """Close the port and all connections that no instance has."""
        self._accept_no_more()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._private is not None:
            self._private.close()
            self._private = None
        for ticket in list(self._tickets.values()):
            ticket.revoke()
        self._tasks.cancel()
        await self._tasks.wait()

    def __repr__(self) -> str:
        return f"<InstancePort {self.addresses} starts={len(self._tickets)} {self._unproven}>"

    # Connections

    def _accept_more(self) -> None:
        if not self._is_accepting:
            self._is_accepting = True
            for listener in self._listeners:
                self.loop.add_reader(listener.fileno(), self._on_acceptable, listener)

    def _accept_no_more(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            for listener in self._listeners:
                self.loop.remove_reader(listener.fileno())

    def _on_acceptable(self, listener: socket.socket) -> None:
        if not self._is_accepting:
            return
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno not in _GONE:
                # Not again at once: the listener stays readable while there is no descriptor free.
                logger.warning("no connection of an instance can be accepted: %s", error)
                self._accept_no_more()
                self.loop.call_later(_ACCEPT_PAUSE_S, self._accept_more)
            return
        sock.setblocking(False)
        is_private = sock.family == socket.AF_UNIX
        if is_private and not is_same_user(sock):
            sock.close()
            return
        if not is_private:
            self._unproven.add(sock)
        self._tasks.start(self._serve(sock, is_private=is_private))

    async def _serve(self, sock: socket.socket, *, is_private: bool) -> None:
        """Serve a new connection until it is an instance's, or closed."""
        is_taken = False
        try:
            if not is_private:
                tune_stream(sock)
            is_taken = await self._shake_hands(sock, is_private=is_private)
        except (OSError, EOFError, HandshakeError, asyncio.TimeoutError) as error:
            self._unproven.warn(
                f"a connection to the port of instances was closed: {_words(error)}"
            )
        except Exception:
            logger.exception("a connection to the port of instances failed")
        finally:
            self._unproven.remove(sock)
            if not is_taken:
                sock.close()

    async def _shake_hands(self, sock: socket.socket, *, is_private: bool) -> bool:
        """Returns whether the socket is an instance's now."""
        handshake = ServerHandshake()
        hello = await asyncio.wait_for(self._read_hello(sock, handshake), HELLO_TIMEOUT_S)
        ticket = self._tickets.get(hello.start)
        if ticket is None or not handshake.is_proved(ticket.token):
            reason = f"'{hello.start}' is not expected"
            self._unproven.warn(_refused(hello, reason))
            await self.loop.sock_sendall(sock, handshake.refusal(reason))
            return False
        self._unproven.remove(sock)
        claim = await ticket.claim(hello)
        if not claim.is_admitted:
            await self._refuse(sock, handshake, hello, claim.refusal)
            return False
        node = ticket.start.places[claim.rank].node
        if problem := handshake.version_problem(hello, node):
            ticket.fail(problem)
            await self._refuse(sock, handshake, hello, problem)
            return False
        await self.loop.sock_sendall(sock, handshake.welcome(ticket.token))
        ticket.add(claim.rank, _share_memory(sock) if is_private else RemoteLink(sock, None))
        return not is_private

    async def _read_hello(self, sock: socket.socket, handshake: ServerHandshake) -> Hello:
        await self.loop.sock_sendall(sock, handshake.greeting())
        while True:
            data = await self.loop.sock_recv(sock, _READ_BYTES)
            if not data:
                raise EOFError
            hello = handshake.feed(data)
            if hello is not None:
                return hello

    async def _refuse(
        self, sock: socket.socket, handshake: ServerHandshake, hello: Hello, reason: str
    ) -> None:
        logger.warning("%s", _refused(hello, reason))
        await self.loop.sock_sendall(sock, handshake.refusal(reason))


def _share_memory(sock: socket.socket) -> RemoteLink:
    """Pass a process of this machine the sockets of a worker; returns the server's ends."""
    ours, theirs = socket_pair()
    fork_socket, their_fork_socket = socket_pair()
    with theirs, their_fork_socket:
        # One byte and two descriptors always fit.
        socket.send_fds(sock, [b"\0"], [theirs.fileno(), their_fork_socket.fileno()])
    return RemoteLink(ours, fork_socket)


def _refused(hello: Hello, reason: str) -> str:
    return f"process {hello.pid} of node {hello.node_id} is refused as an instance: {reason}"


def _words(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it ended before it was known whose it is"
    if isinstance(error, asyncio.TimeoutError):
        return f"it did not say whose it is within {HELLO_TIMEOUT_S:g} s"
    return str(error)
