# SPDX-License-Identifier: Apache-2.0
"""Access tokens: right, wrong and none, where some endpoints ask for them."""

from __future__ import annotations

from typing import Any

from pytriton.client import ModelClient
from tests.client_differential.case import SCHEMES, Case, Row, Servers, each
from tests.client_differential.cases_inputs import A, B
from tests.client_differential.cases_streams import script
from tests.client_differential.models import TOKEN
from tests.client_differential.outcome import attempt
from tests.client_differential.ways import ASYNC_STREAM, ASYNCIO, COUPLED, DECOUPLED, FUTURES, SYNC

TOKENS = {"right": TOKEN, "wrong": "another-token", "no": None}
KINDS = ("open", "unrestricted", "guarded", "private")
LIMITS = {"init_timeout_s": 10}
BY_HEADERS = {"triton-access-token": TOKEN, "triton-grpc-protocol-triton-access-token": TOKEN}
WRONG_HEADERS = dict.fromkeys(BY_HEADERS, "another-token")


def row(kind: str, token: str, **more: Any) -> Row:
    settings = {**LIMITS, "access_token": TOKENS[token]}
    return Row(f"{kind} server, {token} token", **more, settings=settings, server=kind)


INFER = [
    row(kind, token, model="AddSub", use=lambda c: c.infer_sample(A, B))
    for kind in KINDS
    for token in TOKENS
]
STREAM = [
    row(kind, "right", model="Stream", use=lambda c: c.infer_sample(script("a b")))
    for kind in KINDS
]


def guarded(name: str, headers: dict[str, str] | None = None, **settings: Any) -> Row:
    return Row(name, "AddSub", lambda c: c.infer_sample(A, B, headers=headers), settings, "guarded")


HEADERS = (
    guarded("token by header", BY_HEADERS),
    guarded("wrong token by header", WRONG_HEADERS),
    guarded("no token"),
    Row("wait without token", "AddSub", lambda c: c.wait_for_model(5), {}, "guarded"),
)
CLASHES = (
    guarded("headers win over the token", BY_HEADERS, access_token="another-token"),
    guarded("wrong headers win too", WRONG_HEADERS, access_token=TOKEN),
    guarded("empty token", access_token=""),
)
NO_STREAM = [
    Row("stream without token", "Stream", lambda c: c.infer_sample(script("a")), {}, "guarded")
]


def manage(scheme: str) -> Case:
    """Unload and load a bound model; only the right token may.

    The original cannot load it again, and its server is not ready from then on.
    """

    def ask(servers: Servers) -> Any:
        found = []
        for token in ("no", "wrong", "right"):
            with ModelClient(
                servers.url(scheme),
                f"Unloaded_{scheme}",
                access_token=TOKENS[token],
                init_timeout_s=10.0,
            ) as client:
                found += [
                    attempt(client.unload_model),
                    attempt(lambda c=client: c.infer_sample(A, B)),
                    attempt(client.load_model),
                ]
        return found

    return Case(f"unload and load: ModelClient {scheme}", ask, is_last=True)


def manage_unknown(scheme: str) -> Case:
    def ask(servers: Servers) -> Any:
        with ModelClient(servers.url(scheme), "Nowhere", access_token=TOKEN) as client:
            return [
                attempt(client.unload_model),
                attempt(client.load_model),
                attempt(lambda: client.load_model(config="no JSON")),
                attempt(lambda: client.load_model(config="{}")),
            ]

    return Case(f"unload and load what is unknown: ModelClient {scheme}", ask)


CASES = (
    *each(SYNC, (*INFER, *CLASHES)),
    *each([*FUTURES, *ASYNCIO], [of for of in INFER if "right" in of.name]),
    *each(DECOUPLED, STREAM),
    *each([ASYNC_STREAM], NO_STREAM),
    *each(COUPLED, HEADERS),
    *(manage(scheme) for scheme in SCHEMES),
    *(manage_unknown(scheme) for scheme in SCHEMES),
)
