# SPDX-License-Identifier: Apache-2.0
"""The lives of clients: how they are made and closed, and many requests of one client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import Any

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from tests.client_differential.case import Case, Row, Servers, each
from tests.client_differential.cases_inputs import A, B
from tests.client_differential.cases_streams import script
from tests.client_differential.cases_waiting import seconds
from tests.client_differential.outcome import attempt, attempt_async
from tests.client_differential.ways import ASYNCIO, FUTURES, SYNC
from tests.e2e.waiting import eventually

SCHEMES = ("http", "grpc")
LIMIT_S = 5.0
Steps = Callable[[str], Any]


def stepped(
    name: str, steps: Steps, *, schemes: tuple[str, ...] = SCHEMES, is_slow: bool = False
) -> list[Case]:
    """Several steps, given the address of a server."""
    return [
        Case(f"{name}: {scheme}", lambda servers, s=scheme: steps(servers.url(s)), is_slow)
        for scheme in schemes
    ]


def stepped_async(name: str, steps: Callable[[str], Awaitable[Any]], **settings: Any) -> list[Case]:
    return stepped(name, lambda url: asyncio.run(steps(url)), **settings)


def closed(url: str) -> Any:
    client = ModelClient(url, "AddSub")
    client.close()
    return [
        attempt(client.close),
        attempt(lambda: client.infer_sample(A, B)),
        attempt(lambda: client.infer_batch(A, B)),
        attempt(lambda: client.wait_for_model(1)),
        attempt(lambda: client.model_config),
        attempt(lambda: client.is_batching_supported),
        attempt(client.infer_sample),
    ]


def closed_after_use(url: str) -> Any:
    with ModelClient(url, "AddSub") as client:
        found = [attempt(lambda: client.infer_sample(A, B))]
    return [
        *found,
        attempt(lambda: client.infer_sample(A, B)),
        attempt(lambda: client.model_config.model_name),
        attempt(lambda: client.wait_for_model(1)),
    ]


def closed_and_asked_of_the_server(url: str) -> Any:
    client = ModelClient(url, "AddSub")
    client.close()
    return [
        attempt(lambda: client.wait_for_server(1)),
        attempt(client.load_model),
        attempt(client.unload_model),
    ]


def entered_twice(url: str) -> Any:
    client = ModelClient(url, "AddSub")
    with client:
        found = [attempt(lambda: client.infer_sample(A, B))]
    return [
        *found,
        attempt(client.__enter__) is not None,
        attempt(lambda: client.infer_sample(A, B)),
    ]


def copied(url: str) -> Any:
    with ModelClient(url, "AddSub") as client:
        client.infer_sample(A, B)
        with ModelClient.from_existing_client(client) as copy:
            return [
                attempt(lambda: copy.infer_sample(A, B)),
                attempt(lambda: copy.model_config.model_name),
            ]


def copied_unused(url: str) -> Any:
    with ModelClient(url, "AddSub") as client, ModelClient.from_existing_client(client) as copy:
        return attempt(lambda: copy.infer_sample(A, B))


def copied_stream(url: str) -> Any:
    with DecoupledModelClient(url, "Stream") as client:
        list(client.infer_sample(script("a")))
        with DecoupledModelClient.from_existing_client(client) as copy:
            return list(copy.infer_sample(script("b")))


async def copied_async(url: str) -> Any:
    async with AsyncioModelClient(url, "AddSub") as client:
        await client.infer_sample(A, B)
        async with AsyncioModelClient.from_existing_client(client) as copy:
            return await copy.infer_sample(A, B)


async def copied_stream_async(url: str) -> Any:
    async with AsyncioDecoupledModelClient(url, "Stream") as client:
        copy = AsyncioDecoupledModelClient.from_existing_client(client)
        async with copy:
            return [response async for response in copy.infer_sample(script("b"))]


def given_config(model: str, **settings: Any) -> Steps:
    """A client that is told a configuration; where it is that of `model`, another is asked."""

    def steps(url: str) -> Any:
        with ModelClient(url, model) as client:
            config = client.model_config
        with ModelClient(url, "AddSub", model_config=config, **settings) as client:
            return attempt(lambda: client.infer_sample(A, B))

    return steps


def many_in_turn(url: str) -> Any:
    with ModelClient(url, "AddSub") as client:
        return [attempt(lambda: client.infer_sample(A, B)) for _ in range(10)]


def used_after_an_error(url: str) -> Any:
    with ModelClient(url, "AddSub") as client:
        return [attempt(lambda: client.infer_sample(A)), attempt(lambda: client.infer_sample(A, B))]


def used_after_a_timeout(url: str) -> Any:
    with ModelClient(url, "Slow2", inference_timeout_s=0.5) as client:
        late = attempt(lambda: client.infer_sample(seconds(0.8)))
        later = (attempt(lambda: client.infer_sample(seconds(0.01))) for _ in range(10))
        return [late, next((result for result in later if result != late), late)]


def futures(**settings: Any) -> Steps:
    def steps(url: str) -> Any:
        with FuturesModelClient(url, "AddSub", **settings) as client:
            pending = [client.infer_sample(A, B) for _ in range(12)]
            return [attempt(lambda f=future: f.result(LIMIT_S)) for future in pending]

    return steps


def futures_fail(url: str) -> Any:
    with FuturesModelClient(url, "AddSub", max_workers=1) as client:
        pending = [client.infer_sample(A), client.infer_sample(A, B), client.infer_sample()]
        return [attempt(lambda f=future: f.result(LIMIT_S)) for future in pending]


def future_is_done(url: str) -> Any:
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


def futures_closed(url: str) -> Any:
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


def futures_closed_unused(url: str) -> Any:
    client = FuturesModelClient(url, "AddSub")
    return [attempt(client.close), attempt(client.close)]


def futures_closed_without_waiting(url: str) -> Any:
    client = FuturesModelClient(url, "Slow2", max_workers=1)
    pending = [client.infer_sample(seconds(0.2)) for _ in range(3)]
    client.close(wait=False)
    return [attempt(lambda f=future: f.result(LIMIT_S)) for future in pending]


def queue_is_full(url: str) -> Any:
    """The first call may be refused too, by the original, which queues something of its own."""
    with FuturesModelClient(
        url, "Slow2", max_workers=1, max_queue_size=1, non_blocking=True
    ) as client:
        taken: list[Any] = []

        def send() -> Any:
            return attempt(lambda: taken.append(client.infer_sample(seconds(0.5))))

        eventually(lambda: send() is None)
        refusals = (send() for _ in range(3))
        found = next(refusal for refusal in refusals if refusal is not None)
        return [found, attempt(lambda: taken[0].result(LIMIT_S))]


def queue_waits(url: str) -> Any:
    with FuturesModelClient(url, "Slow2", max_workers=1, max_queue_size=1) as client:
        pending = [client.infer_sample(seconds(0.1)) for _ in range(4)]
        return [attempt(lambda f=future: f.result(LIMIT_S)) for future in pending]


def cancelled_future(url: str) -> Any:
    with FuturesModelClient(url, "Slow2", max_workers=1) as client:
        first, second = (client.infer_sample(seconds(0.4)) for _ in range(2))
        is_cancelled = second.cancel()
        found = [is_cancelled, attempt(lambda: first.result(LIMIT_S))]
        try:
            second.result(LIMIT_S)
        except CancelledError:
            found.append("cancelled")
        return [*found, attempt(lambda: client.infer_sample(seconds(0.01)).result(LIMIT_S))]


def futures_of_a_wrong_address(address: str) -> Steps:
    def steps(_: str) -> Any:
        with FuturesModelClient(address, "AddSub") as client:
            return client.infer_sample(A, B).result(LIMIT_S)

    return steps


async def gathered(url: str) -> Any:
    async with AsyncioModelClient(url, "AddSub") as client:
        return await asyncio.gather(*(attempt_async(client.infer_sample(A, B)) for _ in range(16)))


async def gathered_with_errors(url: str) -> Any:
    async with AsyncioModelClient(url, "AddSub") as client:
        calls = (client.infer_sample(A), client.infer_sample())
        return await asyncio.gather(*map(attempt_async, calls))


async def closed_async(url: str) -> Any:
    client = AsyncioModelClient(url, "AddSub", init_timeout_s=0.5)
    found = [await attempt_async(client.infer_sample(A, B))]
    await client.close()
    return [*found, await attempt_async(client.close())]


async def used_after_close_async(url: str) -> Any:
    client = AsyncioModelClient(url, "AddSub", init_timeout_s=0.5)
    await client.close()
    return [
        await attempt_async(client.infer_sample(A, B)),
        await attempt_async(client.wait_for_model(0.3)),
        await attempt_async(client.model_config),
    ]


async def cancelled_async(url: str) -> Any:
    async with AsyncioModelClient(url, "Slow2") as client:
        task = asyncio.create_task(client.infer_sample(seconds(0.8)))
        await asyncio.sleep(0.3)
        task.cancel()
        found = await asyncio.gather(task, return_exceptions=True)
        return [type(found[0]).__name__, await attempt_async(client.infer_sample(seconds(0.01)))]


async def given_less_time_async(url: str) -> Any:
    async with AsyncioModelClient(url, "Slow2") as client:
        await client.model_config
        found = await attempt_async(asyncio.wait_for(client.infer_sample(seconds(0.8)), 0.3))
        return [found, await attempt_async(client.infer_sample(seconds(0.01)))]


async def eager_without_context_async(url: str) -> Any:
    client = AsyncioModelClient(url, "AddSub", lazy_init=False)
    found = await attempt_async(client.infer_sample(A, B))
    await client.close()
    return found


def made(client_class: Any, *, scheme: str = "http", **settings: Any) -> Callable[[Servers], Any]:
    """What comes of making a client, and nothing else."""
    return lambda servers: attempt(lambda: describe(client_class, servers.url(scheme), **settings))


def describe(client_class: Any, url: str, **settings: Any) -> str:
    client = client_class(url, "AddSub", **settings)
    if hasattr(client, "__enter__"):
        client.close()
    else:
        asyncio.run(client.close())
    return type(client).__name__


WRONG_LIMITS = {
    "max_workers": (0, -1),
    "max_queue_size": (0, -1),
}
MADE = (
    *(
        Case(
            f"made with {name}={value}: FuturesModelClient",
            made(FuturesModelClient, **{name: value}),
        )
        for name, values in WRONG_LIMITS.items()
        for value in (*values, None)
    ),
    Case("made for http: DecoupledModelClient", made(DecoupledModelClient)),
    Case("made for grpc: DecoupledModelClient", made(DecoupledModelClient, scheme="grpc")),
    Case("made with an unknown argument: ModelClient", made(ModelClient, colour="red")),
    Case("made without a model: ModelClient", lambda s: ModelClient(s.url("http"))),
)
SETTINGS = (
    Row(
        "given times",
        "AddSub",
        lambda c: c.infer_sample(A, B),
        {"init_timeout_s": 20, "inference_timeout_s": 20},
    ),
    Row(
        "times as integers",
        "AddSub",
        lambda c: c.infer_batch(A[None], B[None]),
        {"init_timeout_s": 20},
    ),
)
EAGER = (
    Row("at once", "AddSub", lambda c: c.infer_sample(A, B), {"lazy_init": False}),
    Row(
        "without asking", "AddSub", lambda c: c.infer_sample(A, B), {"ensure_model_is_ready": False}
    ),
)
CASES = (
    *MADE,
    *each([*SYNC, *FUTURES, *ASYNCIO], SETTINGS),
    *each([*SYNC, *ASYNCIO], EAGER),
    *stepped("closed client", closed),
    *stepped("closed client, server's methods", closed_and_asked_of_the_server),
    *stepped("closed after use", closed_after_use),
    *stepped("entered twice", entered_twice),
    *stepped("from an existing client", copied),
    *stepped("from an unused client", copied_unused),
    *stepped("from an existing stream client", copied_stream, schemes=("grpc",)),
    *stepped_async("from an existing asyncio client", copied_async),
    *stepped_async(
        "from an existing asyncio stream client", copied_stream_async, schemes=("grpc",)
    ),
    *stepped("given its configuration", given_config("AddSub")),
    *stepped(
        "given its configuration, unchecked", given_config("AddSub", ensure_model_is_ready=False)
    ),
    *stepped("given another configuration", given_config("Optional")),
    *stepped(
        "given another configuration, unchecked", given_config("Plain", ensure_model_is_ready=False)
    ),
    *stepped("many in turn", many_in_turn),
    *stepped("used after an error", used_after_an_error),
    *stepped("used after a timeout", used_after_a_timeout, is_slow=True),
    *stepped("futures of one worker", futures(max_workers=1)),
    *stepped("futures of four workers", futures(max_workers=4)),
    *stepped("futures of any number of workers", futures(max_workers=None)),
    *stepped("futures with any number waiting", futures(max_workers=1, max_queue_size=None)),
    *stepped("futures that do not block", futures(max_workers=1, non_blocking=True)),
    *stepped("futures that fail", futures_fail),
    *stepped("a future that is done", future_is_done),
    *stepped("futures, closed", futures_closed),
    *stepped("futures, closed unused", futures_closed_unused),
    *stepped("futures, closed without waiting", futures_closed_without_waiting, is_slow=True),
    *stepped("futures, full queue", queue_is_full, is_slow=True),
    *stepped("futures, full queue that waits", queue_waits, is_slow=True),
    *stepped("futures, cancelled", cancelled_future, is_slow=True),
    *stepped(
        "futures of a wrong address",
        futures_of_a_wrong_address("ftp://localhost"),
        schemes=("http",),
    ),
    *stepped_async("gathered", gathered),
    *stepped_async("gathered with errors", gathered_with_errors),
    *stepped_async("asyncio, closed twice", closed_async),
    *stepped_async("asyncio, used after close", used_after_close_async, is_slow=True),
    *stepped_async("asyncio, cancelled", cancelled_async, is_slow=True),
    *stepped_async("asyncio, given less time", given_less_time_async, is_slow=True),
    *stepped_async("asyncio, at once without context", eager_without_context_async),
)
