# SPDX-License-Identifier: Apache-2.0
"""Futures: many at a time, full queues, cancelled ones, and clients that are closed meanwhile."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from typing import Any

from pytriton.client import FuturesModelClient
from tests.client_differential.case import Steps, stepped
from tests.client_differential.cases_inputs import A, B
from tests.client_differential.cases_waiting import seconds
from tests.client_differential.outcome import attempt
from tests.e2e.waiting import eventually

LIMIT_S = 40.0


def results(pending: list[Future[Any]]) -> list[Any]:
    return [attempt(lambda f=future: f.result(LIMIT_S)) for future in pending]


def several(**settings: Any) -> Steps:
    def steps(url: str) -> Any:
        with FuturesModelClient(url, "AddSub", **settings) as client:
            pending = [client.infer_sample(A, B) for _ in range(12)]
            return results(pending)

    return steps


def failing(url: str) -> Any:
    with FuturesModelClient(url, "AddSub", max_workers=1) as client:
        pending = [client.infer_sample(A), client.infer_sample(A, B), client.infer_sample()]
        return results(pending)


def done(url: str) -> Any:
    with FuturesModelClient(url, "AddSub") as client:
        future = client.infer_sample(A)
        error = future.exception(LIMIT_S)
        return [
            type(error).__name__,
            future.done(),
            future.running(),
            future.cancelled(),
            future.cancel(),
        ]


def closed(url: str) -> Any:
    client = FuturesModelClient(url, "AddSub")
    future = client.infer_sample(A, B)
    client.close()
    return [
        attempt(lambda: future.result(LIMIT_S)),
        attempt(client.close),
        attempt(lambda: client.infer_sample(A, B)),
        attempt(lambda: client.infer_batch(A, B)),
        attempt(lambda: client.wait_for_model(1)),
        attempt(client.model_config),
    ]


def closed_unused(url: str) -> Any:
    client = FuturesModelClient(url, "AddSub")
    return [attempt(client.close), attempt(client.close)]


def closed_without_waiting(url: str) -> Any:
    client = FuturesModelClient(url, "SlowFutures", max_workers=1)
    pending = [client.infer_sample(seconds(0.2)) for _ in range(3)]
    client.close(wait=False)
    return results(pending)


def queue_is_full(url: str) -> Any:
    """The first call may be refused too, by the original, which queues something of its own."""
    with FuturesModelClient(
        url, "SlowFutures", max_workers=1, max_queue_size=1, non_blocking=True
    ) as client:
        taken: list[Any] = []

        def send() -> Any:
            return attempt(lambda: taken.append(client.infer_sample(seconds(0.5))))

        eventually(lambda: send() is None)
        refusals = (send() for _ in range(100))
        found = next(refusal for refusal in refusals if refusal is not None)
        return [found, attempt(lambda: taken[0].result(LIMIT_S))]


def queue_waits(url: str) -> Any:
    with FuturesModelClient(url, "SlowFutures", max_workers=1, max_queue_size=1) as client:
        pending = [client.infer_sample(seconds(0.1)) for _ in range(4)]
        return results(pending)


def cancelled(url: str) -> Any:
    with FuturesModelClient(url, "SlowFutures", max_workers=1) as client:
        first, second = (client.infer_sample(seconds(0.4)) for _ in range(2))
        is_cancelled = second.cancel()
        found = [is_cancelled, attempt(lambda: first.result(LIMIT_S))]
        try:
            second.result(LIMIT_S)
        except CancelledError:
            found.append("cancelled")
        return [*found, attempt(lambda: client.infer_sample(seconds(0.01)).result(LIMIT_S))]


def of_a_wrong_address(_: str) -> Any:
    with FuturesModelClient("ftp://localhost", "AddSub") as client:
        return client.infer_sample(A, B).result(LIMIT_S)


def made(**limits: Any) -> Steps:
    def steps(url: str) -> Any:
        FuturesModelClient(url, "AddSub", **limits).close()

    return steps


CASES = (
    *stepped("futures of one worker", several(max_workers=1)),
    *stepped("futures of four workers", several(max_workers=4)),
    *stepped("futures of any number of workers", several(max_workers=None)),
    *stepped("futures with any number waiting", several(max_workers=1, max_queue_size=None)),
    *stepped("futures that do not block", several(max_workers=1, non_blocking=True)),
    *stepped("futures that fail", failing),
    *stepped("a future that is done", done),
    *stepped("futures, closed", closed),
    *stepped("futures, closed unused", closed_unused),
    *stepped("futures, closed without waiting", closed_without_waiting, is_slow=True),
    *stepped("futures, full queue", queue_is_full, is_slow=True),
    *stepped("futures, full queue that waits", queue_waits, is_slow=True),
    *stepped("futures, cancelled", cancelled, is_slow=True),
    *stepped("futures of a wrong address", of_a_wrong_address),
    *stepped("futures of no worker", made(max_workers=0)),
    *stepped("futures of less than no worker", made(max_workers=-1)),
    *stepped("futures with no room to wait", made(max_queue_size=0)),
    *stepped("futures without limits", made(max_workers=None, max_queue_size=None)),
)
