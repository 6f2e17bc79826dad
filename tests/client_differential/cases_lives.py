# SPDX-License-Identifier: Apache-2.0
"""The lives of clients: how they are made, copied and closed, and what they are good for then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    ModelClient,
)
from tests.client_differential.case import Row, Steps, each, stepped, stepped_async
from tests.client_differential.cases_inputs import A, B
from tests.client_differential.cases_streams import script
from tests.client_differential.cases_waiting import TOO_LONG_S, seconds
from tests.client_differential.outcome import attempt
from tests.client_differential.ways import ASYNCIO, COUPLED, SYNC


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
    with client:
        return [*found, attempt(lambda: client.infer_sample(A, B))]


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
    """A client of AddSub that is told the configuration of `model`."""

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
    with ModelClient(url, "SlowAsyncio", inference_timeout_s=0.5) as client:
        late = attempt(lambda: client.infer_sample(seconds(TOO_LONG_S)))
        later = (attempt(lambda: client.infer_sample(seconds(0.01))) for _ in range(100))
        return [late, next((result for result in later if result != late), late)]


def made_wrongly(client_class: Any, *arguments: Any, **settings: Any) -> Steps:
    def steps(url: str) -> Any:
        client_class(url, *arguments, **settings).close()

    return steps


def addressed(change: Callable[[str], str]) -> Steps:
    """An inference by an address in another form."""

    def steps(url: str) -> Any:
        with ModelClient(change(url), "AddSub") as client:
            return client.infer_sample(A, B)

    return steps


HTTP, GRPC = ("http",), ("grpc",)
TIMES = {"init_timeout_s": 20, "inference_timeout_s": 20}
TIMED = (Row("given times", "AddSub", lambda c: c.infer_sample(A, B), TIMES),)
EAGER = (
    Row("at once", "AddSub", lambda c: c.infer_sample(A, B), {"lazy_init": False}),
    Row(
        "without asking", "AddSub", lambda c: c.infer_sample(A, B), {"ensure_model_is_ready": False}
    ),
)
CASES = (
    *stepped("made for the other protocol", made_wrongly(DecoupledModelClient, "Stream")),
    *stepped("made with an unknown argument", made_wrongly(ModelClient, "AddSub", colour="red")),
    *stepped("made without a model", made_wrongly(ModelClient)),
    *stepped(
        "scheme in capitals",
        addressed(lambda url: url.replace("http", "HTTP").replace("grpc", "GRPC")),
    ),
    *stepped("address with a path", addressed(lambda url: f"{url}/v2/models")),
    *stepped("address with credentials", addressed(lambda url: url.replace("//", "//user:word@"))),
    *stepped("address by name", addressed(lambda url: url.replace("127.0.0.1", "localhost"))),
    *stepped("address without scheme", addressed(lambda url: url.partition("//")[2]), schemes=HTTP),
    *each(COUPLED, TIMED),
    *each([*SYNC, *ASYNCIO], EAGER),
    *stepped("closed client", closed),
    *stepped("closed client, server's methods", closed_and_asked_of_the_server),
    *stepped("closed after use", closed_after_use),
    *stepped("entered twice", entered_twice),
    *stepped("from an existing client", copied),
    *stepped("from an unused client", copied_unused),
    *stepped("from an existing stream client", copied_stream, schemes=GRPC),
    *stepped_async("from an existing asyncio client", copied_async),
    *stepped_async("from an existing asyncio stream client", copied_stream_async, schemes=GRPC),
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
)
