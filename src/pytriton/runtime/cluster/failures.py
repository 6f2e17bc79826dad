# SPDX-License-Identifier: Apache-2.0
"""Says in words what Ray's errors mean for an instance. Knows them by their texts, without Ray."""

from __future__ import annotations

import re

_TEXT_LIMIT = 2000
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# What Ray adds about an actor; we name the instance, its node and its process ourselves.
_ACTOR = re.compile(r"\n\t(?:class_name|actor_id|pid|name|namespace|ip): [^\n]*")
_LINES = re.compile(r"\s*\n\s*")
_MISSING = re.compile(r"No module named '([\w.]+)'")
_GONE = (
    "RpcError",
    "ConnectionError",
    "GetTimeoutError",
    "RaySystemError",
    "ConnectionAbortedError",
)
_NOT_FOUND = "Could not find any running Ray instance"
_NOT_CONNECTED = "Failed to connect to Ray cluster"


def is_cluster_gone(error: BaseException) -> bool:
    """Returns whether an error of Ray's means that the cluster is not there."""
    return type(error).__name__ in _GONE or isinstance(error, ConnectionError)


def describe_failure(error: BaseException) -> str:
    """Returns what went wrong, for a person who knows the cluster but not our code."""
    text = _COLOURS.sub("", str(error)).strip()
    if _ACTOR.search(text):
        text = _LINES.sub(" ", _ACTOR.sub("", text))
    missing = _MISSING.findall(text)
    if missing and missing[-1].split(".")[0] in ("pytriton", "msgspec", "numpy"):
        return (
            f"the Python of a node cannot import '{missing[-1]}': install this server's version of"
            " pytriton on all nodes of the cluster"
        )
    if _NOT_FOUND in text:
        return (
            "there is no Ray cluster on this machine, and no address of one was given: start one "
            "with 'ray start --head', or set RAY_ADDRESS or the server's setting ray_address"
        )
    if _NOT_CONNECTED in text:  # Ray does not say that this was the reason, but logs it
        text += (
            ". If the cluster asks for a token, the server needs it, too: set RAY_AUTH_MODE=token, "
            "and put the token into ~/.ray/auth_token or RAY_AUTH_TOKEN"
        )
    if len(text) > _TEXT_LIMIT:
        text = f"{text[: _TEXT_LIMIT // 2]} … {text[-_TEXT_LIMIT // 2 :]}"
    return text or type(error).__name__
