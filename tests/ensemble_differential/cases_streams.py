# SPDX-License-Identifier: Apache-2.0
"""Ensembles with decoupled steps: none, one and many responses, their order, and errors."""

from __future__ import annotations

import numpy as np

from tests.ensemble_differential import asking
from tests.ensemble_differential.asking import by_stream, by_stream_with_followers, numbers, rows
from tests.python_backend_differential import clients
from tests.recorded_suite import Case, Observation, Server

DIRECT = ("repeat_alone", "repeat_unsaid", "repeat_then_square", "add_then_repeat")
FOLLOWED = ("repeat_then_add", "repeat_nested", "each_two_ways")
ONLY_WORDS = (
    "1 2 final",
    "1 last:2",
    "final",
    "1 error 2",
    "error",
    "1 raise",
    "1 missing 2",
    "1 float 2",
    "1 shape 2",
    "last:error",
)
FOLLOWED_WORDS = ("error", "1 raise", "1 missing 2", "1 float 2", "1 shape shape 2", "last:error")
NUMBERS = {
    "none": numbers(),
    "one": numbers(1),
    "many": numbers(2, 3, 1),
    "zeros": numbers(0, 2, 0),
}


def streamed(model: str, size: str) -> Case:
    """One request whose numbers become responses."""
    inputs = {"A": NUMBERS[size]}
    ask = by_stream if model in DIRECT else by_stream_with_followers
    return Case(f"stream {model}: {size}", lambda server: ask(server, model, inputs))


def words(text: str) -> Case:
    inputs = {"WORDS": clients.text(text)}
    return Case(
        f"stream of words: {text}", lambda server: by_stream(server, "streamed_words_only", inputs)
    )


def followed_words(text: str) -> Case:
    inputs = {"WORDS": clients.text(text)}
    return Case(
        f"stream of words before a step: {text}",
        lambda server: asking.last_by_stream(server, "streamed_words", inputs),
    )


def good_words(text: str) -> Case:
    inputs = {"WORDS": clients.text(text)}
    return Case(
        f"stream of words before a step, in order: {text}",
        lambda server: by_stream_with_followers(server, "streamed_words", inputs),
    )


def over_unary_calls(server: Server) -> Observation:
    """Plain requests to ensembles with a decoupled step, and to one that only says so."""
    return {
        "decoupled": asking.by_both(server, "repeat_alone", {"A": numbers(1)}),
        "found out by the server": asking.by_both(server, "repeat_unsaid", {"A": numbers(1)}),
        "nested": asking.by_both(server, "repeat_nested", {"A": numbers(1)}),
        "only said": asking.by_both(server, "said_but_single", {"A": rows(1)}),
    }


def generated(server: Server) -> Observation:
    return {
        "one": asking.call(server, "/models/repeat_alone/generate", {"A": [4]}),
        "many": asking.call(server, "/models/repeat_alone/generate", {"A": [4, 5]}),
        "stream": asking.call(server, "/models/repeat_alone/generate_stream", {"A": [4, 5]}),
    }


def counted(server: Server) -> Observation:
    names = ("repeat_then_square", "repeat", "square")
    before = asking.counts(server, *names)
    by_stream(server, "repeat_then_square", {"A": numbers(2, 3)})
    by_stream(server, "repeat_then_square", {"A": numbers()})
    return asking.gained(before, asking.counts(server, *names))


def many_at_once(server: Server) -> Observation:
    requests = [{"A": numbers(*range(size))} for size in (3, 0, 5, 1, 40)]
    return by_stream_with_followers(server, "repeat_then_add", *requests)


CASES = (
    *(streamed(model, size) for model in (*DIRECT, *FOLLOWED) for size in NUMBERS),
    *(words(text) for text in ONLY_WORDS),
    *(good_words(text) for text in ("1 2 3", "1 long nothing", "1 last:2")),
    *(followed_words(text) for text in FOLLOWED_WORDS),
    Case("stream: many requests at once", many_at_once),
    Case(
        "stream: many responses in order",
        lambda server: by_stream_with_followers(
            server, "repeat_then_add", {"A": np.arange(300, dtype=np.int32)}
        ),
    ),
    Case("stream: coupled ensemble", lambda server: by_stream(server, "chain", {"A": rows(1, 2)})),
    Case(
        "stream: only said to be decoupled",
        lambda server: by_stream(server, "said_but_single", {"A": rows(1)}),
    ),
    Case("stream: wrong shape", lambda server: by_stream(server, "repeat_alone", {"A": rows(1)})),
    Case(
        "stream: unknown input",
        lambda server: by_stream(server, "repeat_alone", {"NO": numbers(1)}),
    ),
    Case(
        "stream: failing coupled ensemble",
        lambda server: by_stream(server, "words_then_add", {"WORDS": clients.text("raise")}),
    ),
    Case("decoupled ensembles over HTTP and ModelInfer", over_unary_calls),
    Case("decoupled ensembles and generate", generated),
    Case("statistics of decoupled ensembles", counted),
)
