# SPDX-License-Identifier: Apache-2.0
"""Carries requests over gRPC on one connection at a time, and opens the next when one ends."""

from __future__ import annotations

from collections.abc import Callable

from pytriton.tools.perf.load.grpc_session import GrpcSession
from pytriton.tools.perf.load.lane import LaneListener, RequestLane, clock


class GrpcChannel:
    """Several lanes share it.

    Args:
        connect: Opens a connection; OSError if it cannot be made.
        outcome: Who is told that a connection cannot be made.
    """

    def __init__(self, connect: Callable[[], GrpcSession], outcome: LaneListener) -> None:
        self._connect = connect
        self._outcome = outcome
        self._session: GrpcSession | None = None
        self._leaving: list[GrpcSession] = []

    def open(self) -> GrpcSession:
        session = self._session
        if session is None or session.is_leaving or not session.is_open:
            self._leaving = [old for old in self._leaving if old.is_open]
            if session is not None and session.is_open:
                self._leaving.append(session)
            self._session = session = None
            self._session = session = self._connect()
            session.flush()
        return session

    def begin(self, lane: RequestLane) -> None:
        try:
            session = self.open()
        except OSError as error:
            self._outcome.lose(lane, clock(), f"cannot connect: {error}")
            return
        session.begin(lane)

    def close(self) -> None:
        for session in (*self._leaving, self._session):
            if session is not None:
                session.close()
        self._session = None
        self._leaving = []
