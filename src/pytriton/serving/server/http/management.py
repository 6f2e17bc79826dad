# SPDX-License-Identifier: Apache-2.0
"""Answers operations over HTTP: the endpoints beside inference, of the table of operations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pytriton.base.errors import error_for_clients
from pytriton.serving.server.http.handler import HttpExchange
from pytriton.serving.server.http.infer import respond_server_error
from pytriton.serving.server.operations.operation import JsonRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.base.background_tasks import BackgroundTasks
    from pytriton.serving.engine.client import Answer
    from pytriton.serving.server.http.bodies import Bodies, Deferred
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.request import HttpRequest
    from pytriton.serving.server.http.routes import Route
    from pytriton.serving.server.operations.operation import Desk, Operation, OverHttp

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ManagementEndpoints:
    """Answers now, or later if the core, a repository or all front ends have to be waited for."""

    def __init__(self, desk: Desk, bodies: Bodies, tasks: BackgroundTasks) -> None:
        self._desk = desk
        self._bodies = bodies
        self._tasks = tasks
        self._logged_problem = ""  # the last logged reason for not being ready

    def handlers(
        self, operations: Iterable[Operation]
    ) -> dict[str, Callable[..., HttpExchange | None]]:
        """Returns what answers the operations, by their names."""
        return {
            each.name: partial(self._answer, each, each.http)
            for each in operations
            if each.http is not None
        }

    def run_task(self, connection: HttpConnection, work: Coroutine[Any, Any, None]) -> HttpExchange:
        """Start a coroutine that answers; it is not cancelled if the client disconnects."""
        self._tasks.start(answer_errors(connection, lambda: work))
        return HttpExchange()

    def respond_when_known(
        self, connection: HttpConnection, answer: Answer[T], respond: Callable[[T], None]
    ) -> HttpExchange | None:
        """Respond with the engine's answer, now or when it has come."""
        if not isinstance(answer, Coroutine):
            respond(answer)
            return None

        async def respond_later() -> None:
            respond(await answer)

        return self.run_task(connection, respond_later())

    def _answer(
        self,
        operation: Operation,
        http: OverHttp,
        connection: HttpConnection,
        request: HttpRequest,
        route: Route,
    ) -> HttpExchange | None:
        grant = request.head.grant
        asked = JsonRequest(
            route.model or route.region,
            route.version,
            route.repository,
            request.head.method == b"POST",
            partial(self._bodies.settings, request),
            partial(self._bodies.load, request),
        )
        answer = operation.begin(self._desk.of(grant), http, asked)

        def respond(value: Any) -> None:
            if operation.name == "ready":
                self._log_problem(value)
            body = http.write(operation.shown(grant, value))
            connection.respond(200, (body,) if body else (), http.content_type)

        return self.respond_when_known(connection, answer, respond)

    def _log_problem(self, problem: str) -> None:
        """Log why the server is not ready, once while it stays the same."""
        if problem and problem != self._logged_problem:
            logger.info("The server is not ready: %s", problem)
        self._logged_problem = problem


async def answer_errors(connection: HttpConnection, work: Deferred[None]) -> None:
    """Run work that answers a request; its exception is the answer if it raises."""
    try:
        await work()
    except Exception as error:  # noqa: BLE001  the client gets it
        failure = error_for_clients(error, "it served a request in the background")
        respond_server_error(connection, failure)
