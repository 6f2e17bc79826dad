# SPDX-License-Identifier: Apache-2.0
"""A server without sockets and one random HTTP client of it, and what has to be true of both."""

from __future__ import annotations

from collections.abc import Iterable

from pytriton.base.errors import UNEXPECTED
from tests.cost.counting import FIXED_WORK
from tests.fuzz.answering import PATIENCE_S, AnsweringService
from tests.fuzz.fuzzing import (
    assert_reveals_nothing,
    assert_work_is_paid,
    without_logged_errors,
)
from tests.server.http_fakes import Answer, Client, read_answer

PROBE = b"GET /v2/health/live HTTP/1.1\r\nHost: probe\r\nX-Probe: 1\r\n\r\n"
_SERVER_STATUSES = {500, 501, 503, 505}


class HttpRig:
    """A server with models that answer at once, and one client."""

    def __init__(self, **options) -> None:
        self.service = AnsweringService(**options)
        asking = self.service.connect()
        self._probe_answer = asking.send(PROBE).received
        asking.reset()
        self.client: Client = self.service.connect()

    def play(self, reads: Iterable[bytes]) -> None:
        """Let the client send, each read as soon as the server waits for it."""
        for read in reads:
            self.client.send(read)
            self.answer()

    def answer(self) -> None:
        """Answer what models were asked, and what that lets the server ask."""
        while self.service.answer():
            self.client.deliver()

    def probe(self, sent: bytes) -> None:
        """Send a valid request: it is answered, or the connection has ended, or it ends later.

        If the client stopped within a request, the first one may be the rest of that. If it is not
        enough, the client is told after a while.
        """
        client, reader = self.client, self.client.connection._reader
        was_mid_request = True
        while was_mid_request and not client.saw_end:
            was_mid_request = reader.is_mid_request
            before = len(client.received)
            self.play([PROBE])
            if reader.is_mid_request:
                self.service.loop.advance(PATIENCE_S)
                self.answer()
                assert client.saw_end, "neither an answer nor the end"
        if not client.saw_end:
            assert client.received[before:] == self._probe_answer
        if b"HEAD" not in sent:  # answers to it have no body, whatever their length says
            self.check_answers(sent)

    def check_answers(self, sent: bytes) -> list[Answer]:
        """Assert that what came back is a row of whole answers, and none is a mistake of ours."""
        answers, at = [], 0
        received = self.client.received
        while at < len(received):
            answer, at = read_answer(received, at)
            answers.append(answer)
        for answer in answers:
            assert answer.status < 500 or answer.status in _SERVER_STATUSES, answer
            assert UNEXPECTED.encode() not in answer.body, answer
            assert b"its log says why" not in answer.body, answer
            if answer.status >= 400:
                assert_reveals_nothing(answer.body, sent)
        return answers

    def end(self) -> None:
        """Let the client leave, and assert that nothing is left of it."""
        self.client.reset()
        self.answer()
        service = self.service
        assert not service.api.connections
        assert len(service.api.watch) == 0
        assert len(service.api.tasks) == 0
        service.check_idle()
        service.loop.advance(PATIENCE_S)
        assert service.loop.timer_count <= 1


def whole(reads: Iterable[bytes]) -> bytes:
    return b"".join(reads)


def check_play(rig: HttpRig, reads: list[bytes]) -> None:
    """Play a client, probe the connection, and look at what is left and what it cost."""
    sent = whole(reads)
    with without_logged_errors():
        assert_work_is_paid(
            lambda: rig.play(reads), len(sent), fixed_work=FIXED_WORK, reads=len(reads)
        )
        rig.probe(sent)
        rig.end()
