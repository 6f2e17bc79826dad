# SPDX-License-Identifier: Apache-2.0
"""Random and hostile clients of the gRPC front end: it answers or ends, and never raises."""

from __future__ import annotations

import random

import pytest

from pytriton.base.errors import CancelledError, InternalError
from pytriton.protocol.http2 import frames
from tests.server.grpc_fakes import SERVICE, GrpcClient, framed, infer_request
from tests.wire.http2.frame_client import data, rst_stream, window_update

METHODS = ("ModelInfer", "ModelStreamInfer", "ServerLive", "ModelConfig", "Nothing")


class Chaos:
    """A client and a model that do anything at any time, decided by one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.client = GrpcClient(window=self.random.choice((0, 100, 1 << 20)))
        self.streams: list[int] = []
        self.finished: set[int] = set()  # positions of requests that the engine ended

    def step(self) -> None:
        self.random.choice(
            (self.open, self.send, self.send, self.send, self.answer, self.answer, self.move)
        )()

    def open(self) -> None:
        method = self.random.choice(METHODS)
        fields = self.random.choice(
            ((), (("grpc-timeout", "10m"),), (("triton_grpc_error", "true"),))
        )
        self.streams.append(self.client.open(f"{SERVICE}/{method}", *fields))

    def send(self) -> None:
        if not self.streams:
            return
        stream = self.random.choice(self.streams)
        model = self.random.choice(("coupled", "stream", "nobody"))
        message = framed(infer_request(model, str(self.random.random())))
        if self.random.random() < 0.2:
            at = self.random.randrange(len(message))
            message = message[:at] + bytes((self.random.randrange(256),)) + message[at + 1 :]
        self.client.receive(
            self.random.choice(
                (
                    data(stream, message, end_stream=self.random.random() < 0.3),
                    data(stream, message),
                    rst_stream(stream),
                    window_update(stream, self.random.randrange(1, 10_000)),
                    window_update(0, 1000),
                )
            )
        )

    def answer(self) -> None:
        """Let the engine answer one of the requests that it has not ended."""
        inferences = self.client.engine.inferences
        open_ones = [at for at in range(len(inferences)) if at not in self.finished]
        if not open_ones:
            return
        at = self.random.choice(open_ones)
        inference = inferences[at]
        decoupled = inference.request.model_name == "stream"
        is_final = not decoupled or self.random.random() < 0.5
        if is_final:
            self.finished.add(at)
        if self.random.random() < 0.2:
            self.finished.add(at)
            error = self.random.choice((InternalError("x"), CancelledError("")))
            self.client.engine.fail(error, inference.request.fields.id)
        else:
            size = self.random.choice((4, 400, 2 << 20))
            self.client.engine.answer(inference.request.fields.id, bytes(size), final=is_final)

    def move(self) -> None:
        """Let time pass, and the transport fill or drain."""
        self.client.loop.advance(self.random.choice((0, 0.004, 0.02)))
        connection = self.client.connection
        self.random.choice((connection.pause_writing, connection.resume_writing))()
        self.client.run()


@pytest.mark.parametrize("seed", range(60))
def test_random_client_and_model_never_break_the_connection(seed):
    chaos = Chaos(seed)
    for _ in range(150):
        if chaos.client.transport.saw_end:
            break
        chaos.step()
    chaos.client.connection.resume_writing()
    chaos.client.run()
    chaos.client.connection.connection_lost(None)

    engine = chaos.client.engine
    left = [at for at in range(len(engine.inferences)) if at not in chaos.finished]
    assert all(engine.inferences[at] in engine.cancelled for at in left)
    assert not chaos.client.api.connections


def test_client_that_speaks_http_1_is_told_and_cut_off():
    client = GrpcClient()
    other = client.api.make_connection()
    other.connection_made(client.transport)
    other.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    client.run()

    assert client.goaways()
    assert client.transport.saw_end


def test_many_calls_at_once_are_bounded():
    client = GrpcClient()
    for _ in range(2100):
        client.connection.data_received(client.head(f"{SERVICE}/ModelInfer"))
    client.run()

    refused = [sent for sent in client.sent if sent.kind == frames.RST_STREAM]
    assert len(refused) == 2100 - client.api.http2_limits.max_concurrent_streams
