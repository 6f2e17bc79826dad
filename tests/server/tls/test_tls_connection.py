# SPDX-License-Identifier: Apache-2.0
"""Encrypted connections over real sockets: bytes in both directions, slow clients, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import uvloop

from pytriton.serving.server.options.server_options import TlsOptions
from pytriton.serving.server.process import tls_connection as module
from pytriton.serving.server.process import tls_handshakes
from pytriton.serving.server.process.clients import Acceptor, ClientOpener
from pytriton.serving.server.process.tls import TlsPorts
from tests.certificates import CertificateFolder
from tests.e2e.waiting import DEADLINE_S

LARGE = bytes(range(256)) * (24 << 10)  # 6 MiB
MAKERS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Peer:
    """What both kinds of protocols of the tests do: they keep what they hear."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.ends: list[str] = []
        self.is_paused = False

    def connection_made(self, transport):
        self.transport = transport

    def eof_received(self):
        self.ends.append("eof")
        return False

    def connection_lost(self, exc):
        self.ends.append("lost")

    def pause_writing(self):
        self.is_paused = True

    def resume_writing(self):
        self.is_paused = False


class BytesPeer(Peer, asyncio.Protocol):
    def data_received(self, data):
        self.heard += data


class BufferPeer(Peer, asyncio.BufferedProtocol):
    def __init__(self) -> None:
        super().__init__()
        self._buffer = memoryview(bytearray(100_000))

    def get_buffer(self, sizehint):
        return self._buffer

    def buffer_updated(self, nbytes):
        self.heard += self._buffer[:nbytes]


class Rig:
    """An encrypted port, the protocols of its connections, and clients in threads."""

    def __init__(self, loop, folder, kind, **options):
        self.loop = loop
        self.certificates = CertificateFolder(folder)
        files = self.certificates.server_files
        self.ports = TlsPorts(loop)
        tls = TlsOptions(
            server_cert=str(files["tls_cert"]),
            server_key=str(files["tls_key"]),
            root_cert=str(self.certificates.ca),
            **options,
        )
        self.port = self.ports.port(tls, ["http/1.1"])
        self.peers: list[Peer] = []
        self._kind = kind
        listening = socket.create_server(("127.0.0.1", 0))
        self.address = listening.getsockname()
        self.opener = ClientOpener(loop, self._make_peer, self.port)
        self._acceptor = Acceptor(loop, listening, self.opener)
        self._acceptor.start()

    def _make_peer(self):
        peer = self._kind()
        self.peers.append(peer)
        return peer

    def context(self, *, shows_certificate=False) -> ssl.SSLContext:
        certificates = self.certificates
        context = ssl.create_default_context(cafile=str(certificates.ca))
        context.set_alpn_protocols(["h2", "http/1.1"])
        if shows_certificate:
            context.load_cert_chain(certificates.client_cert, certificates.client_key)
        return context

    def connect(self, context=None) -> ssl.SSLSocket:
        """Called in a thread: the loop has to serve meanwhile."""
        sock = socket.create_connection(self.address, DEADLINE_S)
        return (context or self.context()).wrap_socket(sock, server_hostname="localhost")

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = self.loop.time() + DEADLINE_S
        while not condition():
            assert self.loop.time() < deadline
            await asyncio.sleep(0)

    async def peer(self) -> Peer:
        await self.until(lambda: self.peers)
        return self.peers[0]

    async def close(self):
        self._acceptor.close()
        self.opener.abandon()
        for peer in self.peers:
            peer.transport.abort()
        await self.until(lambda: all("lost" in peer.ends for peer in self.peers))
        await self.until(lambda: not self.opener.opening_count)
        self.ports.close()


@pytest.fixture(params=[BytesPeer, BufferPeer], ids=["bytes", "buffers"])
def kind(request):
    return request.param


@pytest.fixture(params=MAKERS)
def loop(request):
    with contextlib.closing(MAKERS[request.param]()) as made:
        yield made


@pytest.fixture
def run(loop, tmp_path, kind):
    def run(test, **options):
        async def run_test():
            rig = Rig(loop, tmp_path, kind, **options)
            try:
                await asyncio.wait_for(test(rig), 2 * DEADLINE_S)
            finally:
                await rig.close()

        loop.run_until_complete(run_test())

    return run


def read_all(client: ssl.SSLSocket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count and (part := client.recv(1 << 16)):
        found += part
    return bytes(found)


def test_small_and_large_messages_arrive_in_both_directions(run):
    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        with client:
            peer = await rig.peer()
            for message in (b"hello", LARGE, b"again"):
                peer.heard.clear()
                await asyncio.to_thread(client.sendall, message)
                size = len(message)
                await rig.until(lambda size=size: len(peer.heard) == size)

                assert peer.heard == message

                answer = asyncio.create_task(asyncio.to_thread(read_all, client, len(message)))
                peer.transport.write(message)

                assert await answer == message

    run(test)


def test_parts_arrive_in_order_behind_large_output(run):
    parts = [b"head", LARGE, b"", b"tail"]

    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        with client:
            peer = await rig.peer()
            peer.transport.writelines(parts)
            peer.transport.write(b"more")
            peer.transport.writelines([b"and", b"more"])
            expected = b"".join(parts) + b"moreandmore"

            assert await asyncio.to_thread(read_all, client, len(expected)) == expected
            await rig.until(lambda: peer.transport.get_write_buffer_size() == 0)

    run(test)


def test_protocol_is_paused_until_the_client_has_read(run):
    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        with client:
            peer = await rig.peer()
            peer.transport.write(LARGE)

            assert peer.is_paused
            assert 0 < peer.transport.get_write_buffer_size() <= len(LARGE) + (1 << 20)

            await asyncio.to_thread(read_all, client, len(LARGE))
            await rig.until(lambda: not peer.is_paused)

    run(test)


def test_client_that_reads_no_answers_of_openssl_is_not_read_either(run):
    """A client can ask for new keys as often as it likes, and each time OpenSSL answers."""

    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        peer = await rig.peer()
        transport = peer.transport
        answers, has_more = 0, True

        def answer(*arguments):
            nonlocal answers
            if has_more:
                answers += 1
                transport._outgoing.write(bytes(64 << 10))
            raise ssl.SSLWantReadError

        transport._decrypt = answer
        raw = socket.socket(fileno=client.detach())
        with raw:
            raw.settimeout(DEADLINE_S)
            while transport.is_reading() and answers < 1000:  # the sockets hold less than that
                before = answers
                await asyncio.to_thread(raw.send, b"?")
                await rig.until(lambda before=before: answers > before)
            has_more = False
            peer.transport.pause_reading()
            peer.transport.resume_reading()  # the protocol does not know of it

            assert not transport.is_reading()
            assert transport.get_write_buffer_size() < 1 << 20

            await asyncio.to_thread(read_all, raw, answers * (64 << 10))
            await rig.until(transport.is_reading)

    run(test)


def test_answer_of_openssl_is_sent_although_data_came_with_the_question(run):
    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        peer = await rig.peer()
        transport = peer.transport

        def decrypt(_size, buffer=None):
            if not transport._incoming.read():
                raise ssl.SSLWantReadError
            transport._outgoing.write(b"answer")
            if buffer is None:
                return b"data"
            buffer[:4] = b"data"
            return 4

        transport._decrypt = decrypt
        with socket.socket(fileno=client.detach()) as raw:
            raw.settimeout(DEADLINE_S)
            await asyncio.to_thread(raw.send, b"question")
            found = b""
            while not found.endswith(b"answer"):  # after the tickets of the session
                part = await asyncio.to_thread(raw.recv, 1 << 16)
                assert part
                found += part

            assert bytes(peer.heard) == b"data"

    run(test)


def test_records_that_bring_nothing_are_read_in_turns(run):
    """As changes of keys are, each of which takes OpenSSL as long as a request takes the server."""
    record, count, most = b"\x17\x03\x03\x00\x01.", 20_000, 1_000
    rounds = [0]

    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        transport = (await rig.peer()).transport

        def decrypt(_size, _buffer=None):
            rounds[-1] += len(transport._incoming.read()) // len(record)
            raise ssl.SSLWantReadError

        transport._decrypt = decrypt
        with socket.socket(fileno=client.detach()) as raw:
            raw.settimeout(DEADLINE_S)
            sending = asyncio.ensure_future(asyncio.to_thread(raw.sendall, record * count))
            while sum(rounds) < count - most:  # a record may be cut
                rounds.append(0)
                await asyncio.sleep(0)
            await sending

    run(test)

    assert max(rounds) <= most


def test_nothing_is_passed_on_while_reading_is_paused(run):
    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        with client:
            peer = await rig.peer()
            peer.transport.pause_reading()
            sending = asyncio.create_task(asyncio.to_thread(client.sendall, b"x" * 100_000))
            await sending

            assert not peer.heard
            assert not peer.transport.is_reading()

            peer.transport.resume_reading()
            await rig.until(lambda: len(peer.heard) == 100_000)

    run(test)


def test_input_is_kept_if_the_protocol_pauses_amid_it(run, kind):
    class Pausing(kind):
        def pause_once(self):
            if len(self.heard) == 1:
                self.transport.pause_reading()

        def data_received(self, data):
            super().data_received(data)
            self.pause_once()

        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            self.pause_once()

    async def test(rig):
        rig._kind = Pausing
        client = await asyncio.to_thread(rig.connect)
        with client:
            peer = await rig.peer()
            incoming, outgoing = client, [b"1", b"2", b"3"]
            for part in outgoing:
                await asyncio.to_thread(incoming.sendall, part)
            await rig.until(lambda: peer.heard)
            peer.transport.resume_reading()
            await rig.until(lambda: peer.heard == b"123")

    run(test)


def test_end_of_the_client_reaches_the_protocol_after_its_last_bytes(run):
    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        peer = await rig.peer()
        await asyncio.to_thread(client.sendall, b"last")
        with contextlib.suppress(ssl.SSLError, OSError):
            (await asyncio.to_thread(client.unwrap)).close()
        client.close()
        await rig.until(lambda: "lost" in peer.ends)

        assert peer.heard == b"last"
        assert peer.ends == ["eof", "lost"]

    run(test)


def test_client_that_vanishes_reaches_the_protocol(run):
    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        peer = await rig.peer()
        client.close()  # without an end of TLS
        await rig.until(lambda: "lost" in peer.ends)

    run(test)


def test_closing_sends_all_output_and_an_end_of_tls(run):
    async def test(rig):
        context = rig.context()
        client = await asyncio.to_thread(rig.connect, context)
        client.suppress_ragged_eofs = False  # the end of the socket alone would be an error
        with client:
            peer = await rig.peer()
            peer.transport.write(LARGE)
            peer.transport.close()
            peer.transport.write(b"ignored")

            assert peer.transport.is_closing()
            assert await asyncio.to_thread(read_all, client, len(LARGE) + 1) == LARGE

    run(test)


def test_half_closed_connection_discards_what_the_client_sends(run):
    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        with client:
            peer = await rig.peer()
            peer.transport.write(LARGE)
            assert peer.transport.can_write_eof()
            peer.transport.write_eof()

            assert await asyncio.to_thread(read_all, client, len(LARGE) + 1) == LARGE

            with contextlib.suppress(OSError):
                await asyncio.to_thread(client.sendall, b"too late")
        await rig.until(lambda: "lost" in peer.ends)

        assert not peer.heard
        assert peer.ends == ["eof", "lost"]

    run(test)


def test_abort_closes_at_once(run):
    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        with client:
            peer = await rig.peer()
            peer.transport.write(LARGE)
            peer.transport.abort()
            await rig.until(lambda: "lost" in peer.ends)

            assert peer.transport.get_extra_info("sslcontext") is not None

    run(test)


def test_abort_of_a_connection_that_has_ended_leaves_its_socket_alone(run):
    aborts = []

    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        peer = await rig.peer()
        client.close()
        await rig.until(lambda: "lost" in peer.ends)
        peer.transport._socket = SimpleNamespace(abort=lambda: aborts.append(peer))
        peer.transport.abort()

    run(test)

    assert aborts == []


def test_broken_record_ends_the_connection(run, caplog):
    async def test(rig):
        client = await asyncio.to_thread(rig.connect)
        peer = await rig.peer()
        raw = socket.socket(fileno=client.detach())
        with raw:
            await asyncio.to_thread(raw.sendall, b"\x17\x03\x03\x00\x20" + b"?" * 32)
            await rig.until(lambda: "lost" in peer.ends)

        assert not peer.heard
        assert [each for each in caplog.records if each.levelno > logging.DEBUG] == []

    run(test)


def test_protocol_of_alpn_and_certificate_of_the_client_are_known(run):
    async def test(rig):
        context = rig.context(shows_certificate=True)
        with await asyncio.to_thread(rig.connect, context) as client:
            peer = await rig.peer()
            transport = peer.transport
            subject = dict(part[0] for part in transport.get_extra_info("peercert")["subject"])

            assert client.selected_alpn_protocol() == "http/1.1"
            assert transport.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            assert subject == {"commonName": "client"}
            assert transport.get_extra_info("peername")[0] == "127.0.0.1"
            assert transport.get_extra_info("cipher")[2] >= 128

    run(test, client_auth="optional")


def test_client_without_a_certificate_has_none_where_it_is_optional(run):
    async def test(rig):
        with await asyncio.to_thread(rig.connect):
            peer = await rig.peer()

            assert peer.transport.get_extra_info("peercert") is None

    run(test, client_auth="optional")


def test_request_without_encryption_is_told_so(run):
    async def test(rig):
        with socket.create_connection(rig.address, DEADLINE_S) as client:
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = await asyncio.to_thread(read_all, client, 10_000)

        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert answer.endswith(b'{"error":"this port is encrypted: use https instead of http"}')
        assert not rig.peers

    run(test)


def test_silent_client_loses_its_place(run, monkeypatch):
    monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT_S", 0.01)

    async def test(rig):
        with socket.create_connection(rig.address, DEADLINE_S) as client:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""
            await rig.until(lambda: not rig.opener.opening_count)

        assert rig.ports.handshake_failures == only("timeout")

    run(test)


def only(reason):
    """The failures of a port where one handshake has failed."""
    return {**dict.fromkeys(tls_handshakes.HANDSHAKE_FAILURES, 0), reason: 1}


def fail_to_connect(rig, context):
    with pytest.raises(OSError), rig.connect(context) as client:
        client.recv(1)  # TLS 1.3: the client is done before the server has seen its certificate


def older(context):
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.parametrize(
    "make_context,options,reason",
    [
        (lambda rig: ssl.create_default_context(), {}, "certificate"),
        (lambda rig: rig.context(), {"client_auth": "required"}, "certificate"),
        (lambda rig: older(rig.context()), {"client_auth": "required"}, "certificate"),
        (lambda rig: older(rig.context()), {"min_version": "1.3"}, "protocol"),
    ],
    ids=["of the server", "of the client", "of the client in TLS 1.2", "version"],
)
def test_failed_handshake_is_counted_by_its_reason(run, make_context, options, reason):
    async def test(rig):
        await asyncio.to_thread(fail_to_connect, rig, make_context(rig))
        await rig.until(lambda: not rig.opener.opening_count)

        assert rig.ports.handshake_failures == only(reason)

    run(test, **options)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100])
def test_client_that_speaks_no_tls_is_counted(run, sent):
    async def test(rig):
        with socket.create_connection(rig.address, DEADLINE_S) as client:
            client.sendall(sent)
            await rig.until(rig.ports.handshake_failures.total)
            await asyncio.to_thread(read_all, client, 10_000)
        await rig.until(lambda: not rig.opener.opening_count)

        assert rig.ports.handshake_failures == only("protocol")

    run(test)


def test_client_that_leaves_amid_its_handshake_is_counted(run):
    async def test(rig):
        with socket.create_connection(rig.address, DEADLINE_S) as client:
            client.sendall(b"\x16\x03\x01")  # the beginning of a record
            await rig.until(lambda: any(each._has_begun for each in rig.opener._handshakes))
        await rig.until(lambda: not rig.opener.opening_count)

        assert rig.ports.handshake_failures == only("other")

    run(test)


def test_client_that_looks_whether_a_port_is_open_is_not_counted(run):
    async def test(rig):
        with socket.create_connection(rig.address, DEADLINE_S):
            await rig.until(lambda: rig.opener.opening_count)
        await rig.until(lambda: not rig.opener.opening_count)
        client = await asyncio.to_thread(rig.connect)
        client.close()
        await rig.until(lambda: rig.peers and rig.peers[0].ends)

        assert rig.ports.handshake_failures.total() == 0

    run(test)


def test_handshake_that_the_server_ends_is_not_counted(run):
    async def test(rig):
        with socket.create_connection(rig.address, DEADLINE_S) as client:
            client.sendall(b"\x16\x03\x01")
            await rig.until(lambda: any(each._has_begun for each in rig.opener._handshakes))
            await rig.until(lambda: not rig.opener._opening)  # its transport is complete
            rig.opener.abandon()
            await rig.until(lambda: not rig.opener.opening_count)

        assert rig.ports.handshake_failures.total() == 0

    run(test)


def test_error_that_is_not_of_openssl_has_another_reason():
    assert module.failure_reason(MemoryError()) == "other"


def test_handshakes_leave_the_event_loop_to_others(run):
    gate = threading.Event()

    async def test(rig):
        rig.ports.threads.submit(gate.wait)  # every thread for handshakes is busy
        for _ in range(rig.ports.threads._max_workers - 1):
            rig.ports.threads.submit(gate.wait)
        connecting = [asyncio.create_task(asyncio.to_thread(rig.connect)) for _ in range(3)]
        await rig.until(lambda: rig.opener.opening_count == 3)
        await asyncio.sleep(0)

        assert not rig.peers

        gate.set()
        for client in await asyncio.gather(*connecting):
            client.close()

    try:
        run(test)
    finally:
        gate.set()


def test_new_certificate_is_for_new_connections_alone(run):
    async def test(rig):
        first = await asyncio.to_thread(rig.connect)
        with first:
            peer = await rig.peer()
            before = first.getpeercert(binary_form=True)
            issued = rig.certificates.replace()
            rig.ports.reload()
            await rig.until(lambda: rig.ports.reload_count)
            with await asyncio.to_thread(rig.connect) as second:
                assert second.getpeercert(binary_form=True) == issued.der != before

            await asyncio.to_thread(first.sendall, b"still here")
            await rig.until(lambda: peer.heard == b"still here")

    run(test)
