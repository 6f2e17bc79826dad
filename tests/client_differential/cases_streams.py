# SPDX-License-Identifier: Apache-2.0
"""Decoupled models: any number of responses, errors between them, and streams left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from pytriton.client import AsyncioDecoupledModelClient, DecoupledModelClient
from tests.client_differential.case import Case, Row, Servers, each
from tests.client_differential.outcome import attempt, attempt_async
from tests.client_differential.ways import DECOUPLED

FLOATS = np.array([1, 2], np.float32)


def script(text: str) -> np.ndarray:
    return np.array([text.encode()], dtype=object)


def batch(*texts: str) -> np.ndarray:
    return np.stack([script(text) for text in texts])


ROWS = (
    Row("no response", "Stream", lambda c: c.infer_sample(script(""))),
    Row("one response", "Stream", lambda c: c.infer_sample(script("a"))),
    Row("three responses", "Stream", lambda c: c.infer_sample(script("a b c"))),
    Row("a hundred responses", "Stream", lambda c: c.infer_sample(script("a " * 100))),
    Row("by name", "Stream", lambda c: c.infer_sample(script=script("a b"))),
    Row("batch of one row", "Stream", lambda c: c.infer_batch(batch("a b"))),
    Row("batch by name", "Stream", lambda c: c.infer_batch(script=batch("a b"))),
    Row("without batching", "PlainStream", lambda c: c.infer_sample(script("a b"))),
    Row("without batching, no response", "PlainStream", lambda c: c.infer_sample(script(""))),
    Row("without batching, error", "PlainStream", lambda c: c.infer_sample(script("a fail"))),
    Row("by a coroutine", "CoroutineStream", lambda c: c.infer_sample(script("a b"))),
    Row("by a coroutine, error", "CoroutineStream", lambda c: c.infer_sample(script("a fail"))),
    Row("error at first", "Stream", lambda c: c.infer_sample(script("fail"))),
    Row("error later", "Stream", lambda c: c.infer_sample(script("a b fail"))),
    Row("unknown output", "OddStream", lambda c: c.infer_sample(script("unknown output"))),
    Row("wrong dtype", "OddStream", lambda c: c.infer_sample(script("wrong dtype"))),
    Row("stream without input", "Stream", lambda c: c.infer_sample()),
    Row(
        "stream by position and by name", "Stream", lambda c: c.infer_sample(script("a"), b=FLOATS)
    ),
    Row("stream with an unknown input", "Stream", lambda c: c.infer_sample(other=script("a"))),
    Row("stream with a wrong type", "Stream", lambda c: c.infer_sample(FLOATS[:1])),
    Row("stream with a wrong shape", "Stream", lambda c: c.infer_sample(batch("a", "b")[:, 0])),
    Row("stream with text", "Stream", lambda c: c.infer_sample(np.array(["a"]))),
    Row("stream with a list", "Stream", lambda c: c.infer_sample(["a"])),
    Row("stream with a batch for a sample", "Stream", lambda c: c.infer_sample(batch("a"))),
    Row("stream with too many rows", "Stream", lambda c: c.infer_batch(batch("a", "b"))),
    Row("stream with zero rows", "Stream", lambda c: c.infer_batch(batch("a")[:0])),
    Row("stream without batching, batch", "PlainStream", lambda c: c.infer_batch(batch("a"))),
    Row("stream of a coupled model", "AddSub", lambda c: c.infer_sample(FLOATS, FLOATS)),
    Row("stream of a coupled model, batch", "AddSub", lambda c: c.infer_batch(*[FLOATS[None]] * 2)),
    Row("stream, parameters", "Stream", lambda c: c.infer_sample(script("a"), parameters={"p": 1})),
    Row("stream, headers", "Stream", lambda c: c.infer_sample(script("a"), headers={"x-h": "1"})),
    Row("stream, bad parameters", "Stream", lambda c: c.infer_sample(script("a"), parameters=[1])),
    Row("stream, bad headers", "Stream", lambda c: c.infer_sample(script("a"), headers={1: "a"})),
    Row(
        "stream, bound version",
        "Stream",
        lambda c: c.infer_sample(script("a")),
        {"model_version": "1"},
    ),
    Row("stream, at once", "Stream", lambda c: c.infer_sample(script("a")), {"lazy_init": False}),
    Row("stream, token", "Stream", lambda c: c.infer_sample(script("a")), {"access_token": "any"}),
)


def stepped(name: str, use: Callable[[DecoupledModelClient], Any], model: str = "Stream") -> Case:
    """Several steps with one client."""

    def ask(servers: Servers) -> Any:
        with DecoupledModelClient(servers.url("grpc"), model) as client:
            return use(client)

    return Case(f"{name}: DecoupledModelClient", ask)


def stepped_async(
    name: str, use: Callable[[AsyncioDecoupledModelClient], Awaitable[Any]], model: str = "Stream"
) -> Case:
    async def run(url: str) -> Any:
        async with AsyncioDecoupledModelClient(url, model) as client:
            return await use(client)

    return Case(
        f"{name}: AsyncioDecoupledModelClient",
        lambda servers: asyncio.run(run(servers.url("grpc"))),
    )


def words(client: DecoupledModelClient, text: str) -> Any:
    return attempt(lambda: list(client.infer_sample(script(text))))


def one_after_another(client: DecoupledModelClient) -> Any:
    return [words(client, text) for text in ("a b", "", "c")]


def second_while_first_is_open(client: DecoupledModelClient) -> Any:
    first = client.infer_sample(script("a b"))
    return [plain_next(first), words(client, "c"), attempt(lambda: list(first)), words(client, "d")]


def second_before_first_began(client: DecoupledModelClient) -> Any:
    first = client.infer_sample(script("a b"))
    return [words(client, "c"), attempt(lambda: list(first))]


def abandoned(client: DecoupledModelClient) -> Any:
    first = client.infer_sample(script("a b c"))
    found = [plain_next(first)]
    del first
    return [*found, words(client, "d")]


def closed_iterator(client: DecoupledModelClient) -> Any:
    first = client.infer_sample(script("a b c"))
    found = [plain_next(first)]
    first.close()
    return [*found, words(client, "d")]


def next_after_the_end(client: DecoupledModelClient) -> Any:
    responses = client.infer_sample(script("a"))
    return [attempt(lambda: next(responses)) for _ in range(3)]


def next_after_an_error(client: DecoupledModelClient) -> Any:
    responses = client.infer_sample(script("fail"))
    return [attempt(lambda: next(responses)) for _ in range(2)]


def used_after(mistake: Callable[[DecoupledModelClient], Any]) -> Callable[..., Any]:
    return lambda client: [attempt(lambda: list(mistake(client))), words(client, "a b")]


def closed_while_open(client: DecoupledModelClient) -> Any:
    responses = client.infer_sample(script("a pause b"))
    found = [plain_next(responses)]
    return [*found, attempt(client.close)]


def closed_before_the_first(client: DecoupledModelClient) -> Any:
    client.infer_sample(script("pause a"))
    return attempt(client.close)


def closed_twice(client: DecoupledModelClient) -> Any:
    words(client, "a")
    return [attempt(client.close), attempt(client.close), words(client, "a")]


def plain_next(responses: Any) -> Any:
    return attempt(lambda: next(responses))


async def words_async(client: AsyncioDecoupledModelClient, text: str) -> Any:
    async def read() -> Any:
        return [response async for response in client.infer_sample(script(text))]

    return await attempt_async(read())


async def one_after_another_async(client: AsyncioDecoupledModelClient) -> Any:
    return [await words_async(client, text) for text in ("a b", "", "c")]


async def side_by_side(client: AsyncioDecoupledModelClient) -> Any:
    return await asyncio.gather(
        *(words_async(client, text) for text in ("a b", "c", "a fail", "d"))
    )


async def abandoned_async(client: AsyncioDecoupledModelClient) -> Any:
    first = client.infer_sample(script("a b c"))
    found = [await attempt_async(anext(first))]
    await first.aclose()
    return [*found, await words_async(client, "d")]


async def next_after_the_end_async(client: AsyncioDecoupledModelClient) -> Any:
    responses = client.infer_sample(script("a"))
    return [await attempt_async(anext(responses)) for _ in range(3)]


async def used_after_an_error_async(client: AsyncioDecoupledModelClient) -> Any:
    return [await words_async(client, "a fail"), await words_async(client, "b")]


async def cancelled_async(client: AsyncioDecoupledModelClient) -> Any:
    has_begun = asyncio.Event()

    async def read() -> None:
        async for _ in client.infer_sample(script("a pause b")):
            has_begun.set()

    task = asyncio.create_task(read())
    await has_begun.wait()
    task.cancel()
    found = await asyncio.gather(task, return_exceptions=True)
    return [type(found[0]).__name__, await words_async(client, "c")]


STEPS = (
    stepped("one after another", one_after_another),
    stepped("second stream while the first is open", second_while_first_is_open),
    stepped("second stream before the first began", second_before_first_began),
    stepped("abandoned stream", abandoned),
    stepped("closed iterator", closed_iterator),
    stepped("next after the end", next_after_the_end),
    stepped("next after an error", next_after_an_error),
    stepped("used after an error", used_after(lambda c: c.infer_sample(script("a fail")))),
    stepped("used after no input", used_after(lambda c: c.infer_sample())),
    stepped("used after text", used_after(lambda c: c.infer_sample(np.array(["a"])))),
    stepped(
        "used after parameters", used_after(lambda c: c.infer_sample(script("a"), parameters={}))
    ),
    stepped("used after a wrong type", used_after(lambda c: c.infer_sample(FLOATS[:1]))),
    stepped("used after an unknown input", used_after(lambda c: c.infer_sample(b=FLOATS))),
    stepped("coupled model twice", used_after(lambda c: c.infer_sample(FLOATS, FLOATS)), "AddSub"),
    stepped("closed while open", closed_while_open, "PauseStream"),
    stepped("closed before the first response", closed_before_the_first, "PauseStream"),
    stepped("stream client closed twice", closed_twice),
    stepped_async("one after another", one_after_another_async),
    stepped_async("streams side by side", side_by_side),
    stepped_async("abandoned stream", abandoned_async),
    stepped_async("next after the end", next_after_the_end_async),
    stepped_async("used after an error", used_after_an_error_async),
    stepped_async("cancelled stream", cancelled_async, "PauseStream"),
)
CASES = (*each(DECOUPLED, ROWS), *STEPS)
