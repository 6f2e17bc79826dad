# SPDX-License-Identifier: Apache-2.0
"""Client libraries that send many requests at a time, as programs of users do.

Every driver takes the address of a server, a model that adds one to a number, and more arguments of
the library's `infer`; it checks all answers.
"""

from __future__ import annotations

import asyncio
import copy
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from pytriton.client import AsyncioModelClient, FuturesModelClient, ModelClient
from tests.e2e.waiting import DEADLINE_S

REQUESTS = 208
TOGETHER = 16

Driver = Callable[[str, str, dict[str, Any]], None]


def _number(index: int) -> np.ndarray:
    return np.array([[index]], np.float32)


def _arguments(library: Any, index: int, options: dict[str, Any]) -> dict[str, Any]:
    """What `infer` of a library of the official client gets."""
    tensor = library.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(_number(index))
    more = copy.deepcopy(options)  # the HTTP clients add headers of theirs to those that they get
    if "request_id" in more:
        more["request_id"] = str(index)
    if more.pop("names_outputs", False):
        more["outputs"] = [library.InferRequestedOutput("y")]
    return {"inputs": [tensor], **more}


def _check(index: int, y: np.ndarray) -> None:
    assert y.tolist() == [[index + 1]]


def _in_threads(work: Callable[[Iterable[int]], None]) -> None:
    """Lets each of some threads do its share of the requests."""
    with ThreadPoolExecutor(TOGETHER) as threads:
        shares = [range(first, REQUESTS, TOGETHER) for first in range(TOGETHER)]
        for done in [threads.submit(work, share) for share in shares]:
            done.result(DEADLINE_S)


def http_threads(url: str, model: str, options: dict[str, Any]) -> None:
    def work(share: Iterable[int]) -> None:
        with tritonclient.http.InferenceServerClient(url) as client:
            for index in share:
                answer = client.infer(model, **_arguments(tritonclient.http, index, options))
                _check(index, answer.as_numpy("y"))

    _in_threads(work)


def http_async_infer(url: str, model: str, options: dict[str, Any]) -> None:
    with tritonclient.http.InferenceServerClient(url, concurrency=TOGETHER) as client:
        for first in range(0, REQUESTS, TOGETHER):
            asked = {
                index: client.async_infer(model, **_arguments(tritonclient.http, index, options))
                for index in range(first, first + TOGETHER)
            }
            for index, answer in asked.items():
                _check(index, answer.get_result().as_numpy("y"))


def http_asyncio(url: str, model: str, options: dict[str, Any]) -> None:
    asyncio.run(_gather(tritonclient.http.aio, url, model, options))


def grpc_threads(url: str, model: str, options: dict[str, Any]) -> None:
    with tritonclient.grpc.InferenceServerClient(url) as client:

        def work(share: Iterable[int]) -> None:
            for index in share:
                answer = client.infer(model, **_arguments(tritonclient.grpc, index, options))
                _check(index, answer.as_numpy("y"))

        _in_threads(work)


def grpc_async_infer(url: str, model: str, options: dict[str, Any]) -> None:
    answers: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(url) as client:
        for first in range(0, REQUESTS, TOGETHER):
            for index in range(first, first + TOGETHER):

                def keep(result: Any, error: Any, index: int = index) -> None:
                    answers.put((index, result, error))

                arguments = _arguments(tritonclient.grpc, index, options)
                client.async_infer(model, callback=keep, **arguments)
            for _ in range(TOGETHER):
                index, result, error = answers.get(timeout=DEADLINE_S)
                assert error is None
                _check(index, result.as_numpy("y"))


def grpc_asyncio(url: str, model: str, options: dict[str, Any]) -> None:
    asyncio.run(_gather(tritonclient.grpc.aio, url, model, options))


async def _gather(library: Any, url: str, model: str, options: dict[str, Any]) -> None:
    async with library.InferenceServerClient(url) as client:
        for first in range(0, REQUESTS, TOGETHER):
            indices = range(first, first + TOGETHER)
            calls = [client.infer(model, **_arguments(library, i, options)) for i in indices]
            for index, answer in zip(indices, await asyncio.gather(*calls), strict=True):
                _check(index, answer.as_numpy("y"))


def model_client(url: str, model: str, _options: dict[str, Any]) -> None:
    with ModelClient(url, model) as client:

        def work(share: Iterable[int]) -> None:
            for index in share:
                _check(index, client.infer_batch(_number(index))["y"])

        _in_threads(work)


def futures_client(url: str, model: str, _options: dict[str, Any]) -> None:
    with FuturesModelClient(url, model, max_workers=TOGETHER) as client:
        asked = [client.infer_batch(_number(index)) for index in range(REQUESTS)]
        for index, answer in enumerate(asked):
            _check(index, answer.result(DEADLINE_S)["y"])


def asyncio_client(url: str, model: str, _options: dict[str, Any]) -> None:
    async def run() -> None:
        async with AsyncioModelClient(url, model) as client:
            for first in range(0, REQUESTS, TOGETHER):
                indices = range(first, first + TOGETHER)
                answers = await asyncio.gather(*(client.infer_batch(_number(i)) for i in indices))
                for index, answer in zip(indices, answers, strict=True):
                    _check(index, answer["y"])

    asyncio.run(run())


OFFICIAL: dict[str, list[Driver]] = {
    "http": [http_threads, http_async_infer, http_asyncio],
    "grpc": [grpc_threads, grpc_async_infer, grpc_asyncio],
}
OURS: list[Driver] = [model_client, futures_client, asyncio_client]
