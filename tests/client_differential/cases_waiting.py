# SPDX-License-Identifier: Apache-2.0
"""Models and servers that are not there, or that are slow, and the time allowed for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.client_differential.case import Row, each
from tests.client_differential.cases_inputs import A, B
from tests.client_differential.cases_streams import script
from tests.client_differential.ways import ASYNCIO, COUPLED, DECOUPLED, FUTURES, SYNC

SHORT = {"init_timeout_s": 0.3, "inference_timeout_s": 0.3}
# For the original on a busy machine; this package's clients wait for the answers themselves.
ENOUGH_FOR_THE_SERVER_S = 3.0
ENOUGH_FOR_THE_SERVER = {
    "init_timeout_s": ENOUGH_FOR_THE_SERVER_S,
    "inference_timeout_s": ENOUGH_FOR_THE_SERVER_S,
}
LONG = {"init_timeout_s": 60, "inference_timeout_s": 60}
# Enough for what is answered at once, and too little for TOO_LONG_S and the pauses of streams.
SHORT_INFERENCE_S = 1.5
SHORT_INFERENCE = {"inference_timeout_s": SHORT_INFERENCE_S}
TOO_LONG_S = 5.0


def seconds(value: float) -> np.ndarray:
    return np.array([value], np.float32)


def missing_server(kind: str) -> dict[str, Any]:
    return {"model": "AddSub", "settings": SHORT, "server": kind, "is_slow": True}


def missing_model(name: str | None, **settings: Any) -> dict[str, Any]:
    return {"model": name, "settings": {**ENOUGH_FOR_THE_SERVER, **settings}, "is_slow": True}


MISSING = {
    "unknown model": missing_model("Nowhere"),
    "unknown version": missing_model("AddSub", model_version="7"),
    "version that is no number": missing_model("AddSub", model_version="latest"),
    "nobody listens": missing_server("nobody"),
    "nobody answers": missing_server("silent"),
}
STRANGE = {
    "empty name": missing_model(""),
    "name with a slash": missing_model("Add/Sub"),
    "name with a space": missing_model("Add Sub"),
    "None for a name": missing_model(None),
    "text for a time": missing_model("AddSub", init_timeout_s="1"),
    "text for the time of an inference": missing_model("AddSub", inference_timeout_s="1"),
}
INFER = [Row(f"{n}, infer", use=lambda c: c.infer_sample(A, B), **m) for n, m in MISSING.items()]
STRANGERS = [Row(n, use=lambda c: c.infer_sample(A, B), **m) for n, m in STRANGE.items()]
STREAM = [
    Row(f"{n}, infer", use=lambda c: c.infer_sample(script("a")), **m) for n, m in MISSING.items()
]
WAIT = [
    Row(
        f"{n}, wait",
        use=lambda c, limit_s=m["settings"]["init_timeout_s"]: c.wait_for_model(limit_s),
        **m,
    )
    for n, m in MISSING.items()
]
CONFIG = [Row(f"{n}, config", use=lambda c: c.model_config, **m) for n, m in MISSING.items()]
FUTURE_CONFIG = [
    Row(f"{n}, config", use=lambda c: c.model_config(), **m) for n, m in MISSING.items()
]
EAGER = [
    Row(
        f"{name}, at once",
        model=m["model"],
        use=lambda c: c.model_config,
        settings={**m["settings"], "lazy_init": False},
        server=m.get("server", "open"),
        is_slow=True,
    )
    for name, m in MISSING.items()
]
SERVER = [
    Row(
        "nobody listens, wait for the server",
        use=lambda c: c.wait_for_server(0.3),
        **MISSING["nobody listens"],
    )
]
SLOW = (
    Row("in time", "Slow", lambda c: c.infer_sample(seconds(0.4)), LONG, is_slow=True),
    Row(
        "too late",
        "Slow",
        lambda c: c.infer_sample(seconds(TOO_LONG_S)),
        SHORT_INFERENCE,
        is_slow=True,
    ),
    Row(
        "a model that yields twice",
        "Twice",
        lambda c: c.infer_sample(A),
        {"inference_timeout_s": 20.0},
        is_slow=True,
    ),
)
SLOW_STREAM = (
    Row(
        "pause in time",
        "PauseStream",
        lambda c: c.infer_sample(script("a pause b")),
        LONG,
        is_slow=True,
    ),
    Row(
        "pause at first",
        "PauseStream",
        lambda c: c.infer_sample(script("pause a")),
        SHORT_INFERENCE,
        is_slow=True,
    ),
    Row(
        "pause between",
        "PauseStream",
        lambda c: c.infer_sample(script("a pause b")),
        SHORT_INFERENCE,
        is_slow=True,
    ),
)
CASES = (
    *each(COUPLED, (*INFER, *STRANGERS, *WAIT, *SLOW)),
    *each([*SYNC, *ASYNCIO], (*CONFIG, *EAGER)),
    *each(FUTURES, FUTURE_CONFIG),
    *each(SYNC, SERVER),
    *each(DECOUPLED, (*STREAM, *SLOW_STREAM)),
)
