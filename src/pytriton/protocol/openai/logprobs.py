# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of tokens: as models give them, and in the two forms of OpenAI's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from pytriton.base.errors import InternalError

_FORM = (
    "expected a JSON list of objects with 'token' and 'logprob' in the output 'logprobs', or of "
    "vLLM's objects by token id"
)


def read_logprobs(raw: bytes) -> list[dict[str, Any]]:
    """Read the output of a model.

    Each element is an object with `token`, `logprob` and maybe `top_logprobs`, a list of such
    objects; or, as vLLM's backend gives them, an object by token id, the chosen token first.

    Returns:
        The tokens in the form of chats.

    Raises:
        InternalError: It is something else.
    """
    try:
        tokens = orjson.loads(raw) if raw.strip() else []
        return [_token(each) for each in tokens or ()]
    except (orjson.JSONDecodeError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InternalError(f"{_FORM}, got {raw[:100]!a}") from error


def as_completion(tokens: Sequence[dict[str, Any]], offset: int) -> dict[str, Any]:
    """Returns tokens in the form of completions.

    Args:
        tokens: What `read_logprobs` returned.
        offset: The number of characters before the first of them.
    """
    offsets = []
    for each in tokens:
        offsets.append(offset)
        offset += len(each["token"])
    return {
        "tokens": [each["token"] for each in tokens],
        "token_logprobs": [each["logprob"] for each in tokens],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in each["top_logprobs"]} for each in tokens
        ],
        "text_offset": offsets,
    }


def _token(each: dict[str, Any]) -> dict[str, Any]:
    if "token" in each:
        top = [_entry(one["token"], one["logprob"]) for one in each.get("top_logprobs") or ()]
        return {**_entry(each["token"], each["logprob"]), "top_logprobs": top}
    entries = [_entry(*_of_token_id(key, value)) for key, value in each.items()]
    return {**entries[0], "top_logprobs": entries}


def _of_token_id(key: str, value: Any) -> tuple[str, float]:
    if isinstance(value, dict):
        return value.get("decoded_token") or key, value["logprob"]
    return key, float(value)


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": float(logprob), "bytes": list(token.encode())}
