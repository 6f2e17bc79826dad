# SPDX-License-Identifier: Apache-2.0
"""Decides which connection carries the requests of a lane."""

from __future__ import annotations

import functools

from pytriton.tools.perf.load.grpc_channel import GrpcChannel
from pytriton.tools.perf.load.grpc_session import GrpcSession
from pytriton.tools.perf.load.grpc_stream import GrpcStreamSession
from pytriton.tools.perf.load.http_answers import Head
from pytriton.tools.perf.load.http_connection import LoadHttpConnection
from pytriton.tools.perf.load.lane import Carrier, LaneListener
from pytriton.tools.perf.load.link import Dialer
from pytriton.tools.perf.load.poller import SocketPoller
from pytriton.tools.perf.load.recipe import Recipe
from pytriton.tools.perf.load.requests import GrpcRequests, HttpRequests

# Calls that share a connection of gRPC: as many as clients of Triton's own library do.
LANES_PER_CONNECTION = 6


class Carriers:
    """Makes carriers as lanes need them, and closes them all.

    Over HTTP each lane has a connection. Over gRPC some lanes share one.
    """

    def __init__(self, recipe: Recipe, poller: SocketPoller) -> None:
        self._recipe = recipe
        self._poller = poller
        protocol = "h2" if recipe.is_grpc else "http/1.1"
        self._link = Dialer(recipe.host, recipe.port, recipe.tls, [protocol])
        self._carriers: list[Carrier] = []
        self._heads: dict[bytes, Head] = {}
        self._http = None if recipe.is_grpc else HttpRequests(recipe)
        self._grpc = GrpcRequests(recipe) if recipe.is_grpc else None
        self.outcome: LaneListener  # set before the first lane is made: it has the lanes

    def of_lane(self, number: int) -> Carrier:
        """The carrier of a lane."""
        index = number if self._grpc is None else number // LANES_PER_CONNECTION
        while len(self._carriers) <= index:
            self._carriers.append(self._make())
        return self._carriers[index]

    def check(self) -> None:
        """Connect once, to see whether it works; OSError if it does not."""
        self.of_lane(0).open()

    def close(self) -> None:
        for carrier in self._carriers:
            carrier.close()

    def _make(self) -> Carrier:
        if self._http is not None:
            return LoadHttpConnection(
                self._link,
                self._http,
                self.outcome,
                self._poller,
                self._heads,
                is_streaming=self._recipe.is_streaming,
            )
        assert self._grpc is not None
        arguments = (self._link, self._grpc, self._recipe.head, self.outcome, self._poller)
        if self._recipe.is_streaming:
            is_decoupled = self._recipe.is_decoupled
            connect = functools.partial(GrpcStreamSession, *arguments, is_decoupled=is_decoupled)
            return GrpcChannel(connect, self.outcome)
        return GrpcChannel(functools.partial(GrpcSession, *arguments), self.outcome)
