# SPDX-License-Identifier: Apache-2.0
"""A server's end that notes what models ask for, and gives the answers that a test laid out."""

from __future__ import annotations

from collections import deque

from pytriton.runtime.pb_utils.failures import TritonModelException


class FakeCall:
    """An inference whose responses are known beforehand."""

    def __init__(self, responses, *, last_is_marked=True):
        self._responses = deque(responses)
        self._last_is_marked = last_is_marked
        self.is_over = False
        self.is_cancelled = False
        self.is_abandoned = False

    def receive(self):
        assert not self.is_over, "nobody waits for what cannot come"
        response = self._responses.popleft() if self._responses else None
        self.is_over = response is None or (self._last_is_marked and not self._responses)
        return response

    def notify(self, wake):
        wake()

    def cancel(self):
        self.is_cancelled = True

    def abandon(self):
        self.is_abandoned = True


class FakeRuntime:
    """MemoryFrame all that it is asked for; `refusal` is the text that the server refuses with."""

    instance_name = "model_0_0"
    model_directory = "/models/model/1"

    def __init__(self):
        self.calls = []
        self.notes = []
        self.lines = []
        self.requests = []
        self.answers = {}
        self.refusal = None
        self.next_call = FakeCall([])

    def infer(self, request, *, decoupled, is_awaited=False):
        self.requests.append((request, decoupled))
        return self.next_call

    def call(self, action, **arguments):
        if self.refusal is not None:
            raise TritonModelException(self.refusal)
        self.calls.append((action, arguments))
        return self.answers.get(action)

    def notify(self, action, **arguments):
        self.notes.append((action, arguments))

    def log(self, level, message, file, line):
        self.lines.append((level, message, file, line))


class FakeContext:
    """The server's end of a request: what was sent, and whether the client is gone."""

    def __init__(self):
        self.sent = []
        self.gone = False

    def send(self, response, *, is_final):
        self.sent.append((response, is_final))

    def is_cancelled(self):
        return self.gone


class FakeBatch:
    """A batch of requests with these contexts."""

    is_decoupled = False

    def __init__(self, contexts):
        self._contexts = contexts

    def context(self, position):
        return self._contexts[position]
