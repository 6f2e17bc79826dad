# SPDX-License-Identifier: Apache-2.0
"""The ensembles that both servers load, and copies of models with another configuration."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.ensemble_differential.text_format import Step, ensemble, tensor

MODELS = Path(__file__).parent / "model_repository"
DECOUPLED = "model_transaction_policy { decoupled: true }"
BATCHED = "max_batch_size: 8"
QUEUE_WITH_TIMEOUTS = (
    "dynamic_batching { default_queue_policy"
    " { timeout_action: REJECT default_timeout_microseconds: 60000000"
    " allow_timeout_override: true max_queue_size: 2 } }"
)
CACHED = "response_cache { enable: true }"

A, B, C, D = (tensor(name) for name in "ABCD")
ONE_OF_B, ONE_OF_C = tensor("B", dims="1"), tensor("C", dims="1")
WORDS = tensor("WORDS", "STRING", "1")
TOLD = tensor("TOLD", "STRING", "1")


def chain(first: str, last: str, source: str = "A", target: str = "B") -> list[Step]:
    """Two steps that each add one."""
    return [
        Step(first, {"IN": source}, {"OUT": "BETWEEN"}),
        Step(last, {"IN": "BETWEEN"}, {"OUT": target}),
    ]


ADDING = Step("add_one", {"IN": "A"}, {"OUT": "B"})
REPEATING = Step("repeat", {"IN": "A"}, {"OUT": "EACH"})
DIAMOND = [
    Step("add_one", {"IN": "A"}, {"OUT": "MORE"}),
    Step("sum_of_two", {"LEFT": "A", "RIGHT": "MORE"}, {"SUM": "B", "DIFFERENCE": "C"}),
]

COUPLED = {
    "chain": ensemble([A], [B], chain("add_one", "add_one"), BATCHED),
    "chain_without_batches": ensemble(
        [tensor("A", dims="-1, -1")],
        [tensor("B", dims="-1, -1")],
        chain("add_one", "add_one"),
    ),
    "chain_of_plain_models": ensemble([A], [B], chain("plain_add_one", "plain_add_one")),
    "batches_over_plain_models": ensemble(
        [A], [B], chain("plain_add_one", "plain_add_one"), "max_batch_size: 2"
    ),
    "mixed_models": ensemble([A], [B], chain("add_one", "plain_add_one"), "max_batch_size: 4"),
    "diamond": ensemble([A], [B, C], DIAMOND, BATCHED),
    "branches": ensemble(
        [tensor("A")],
        [B, TOLD],
        [
            Step("plain_add_one", {"IN": "A"}, {"OUT": "B"}),
            Step("telling", {"LEFT": "A"}, {"TOLD": "TOLD"}),
        ],
    ),
    "inner_tensor_given": ensemble(
        [A],
        [B, tensor("BETWEEN")],
        chain("add_one", "add_one"),
        BATCHED,
    ),
    "nested": ensemble(
        [A],
        [D],
        [
            Step("chain", {"A": "A"}, {"B": "B"}),
            Step("diamond", {"A": "B"}, {"B": "C"}),
            Step("add_one", {"IN": "C"}, {"OUT": "D"}),
        ],
        BATCHED,
    ),
    "telling_all": ensemble(
        [
            tensor("LEFT", more="optional: true"),
            tensor("RIGHT", more="optional: true"),
        ],
        [TOLD],
        [Step("telling", {"LEFT": "LEFT", "RIGHT": "RIGHT"}, {"TOLD": "TOLD"})],
    ),
    "telling_of_required": ensemble(
        [tensor("LEFT"), tensor("RIGHT")],
        [TOLD],
        [Step("telling", {"LEFT": "LEFT", "RIGHT": "RIGHT"}, {"TOLD": "TOLD"})],
    ),
    "telling_after_a_step": ensemble(
        [tensor("LEFT", more="optional: true"), tensor("RIGHT")],
        [TOLD],
        [
            Step("plain_add_one", {"IN": "RIGHT"}, {"OUT": "NEXT"}),
            Step("telling", {"LEFT": "LEFT", "RIGHT": "NEXT"}, {"TOLD": "TOLD"}),
        ],
    ),
    "required_of_optional": ensemble(
        [tensor("LEFT", more="optional: true"), tensor("RIGHT")],
        [tensor("B")],
        [Step("sum_of_two", {"LEFT": "LEFT", "RIGHT": "RIGHT"}, {"SUM": "B"})],
        BATCHED,
    ),
    "words_then_add": ensemble(
        [WORDS],
        [B],
        [
            Step("scripted", {"WORDS": "WORDS"}, {"OUT": "EACH"}),
            Step("plain_add_one", {"IN": "EACH"}, {"OUT": "B"}),
        ],
    ),
    "words_only": ensemble(
        [WORDS], [ONE_OF_B], [Step("scripted", {"WORDS": "WORDS"}, {"OUT": "B"})]
    ),
    "words_nested": ensemble(
        [WORDS], [B], [Step("words_then_add", {"WORDS": "WORDS"}, {"B": "B"})]
    ),
    "words_beside": ensemble(
        [WORDS, A],
        [ONE_OF_B, C],
        [
            Step("scripted", {"WORDS": "WORDS"}, {"OUT": "B"}),
            Step("plain_add_one", {"IN": "A"}, {"OUT": "C"}),
        ],
    ),
    "labels": ensemble(
        [tensor("A", "FP32", "4")],
        [tensor("B", "FP32", "4")],
        [Step("labelled", {"IN": "A"}, {"SCORES": "B"})],
        BATCHED,
    ),
    "waits_twice": ensemble(
        [tensor("FILE", "STRING", "1")],
        [tensor("NAME", "STRING", "1")],
        [
            Step("waiting", {"FILE": "FILE"}, {"NAME": "PASSED"}),
            Step("waiting_again", {"FILE": "PASSED"}, {"NAME": "NAME"}),
        ],
    ),
    "waits_in_queues": ensemble(
        [tensor("FILE", "STRING", "1")],
        [tensor("NAME", "STRING", "1")],
        [Step("waiting_in_queue", {"FILE": "FILE"}, {"NAME": "NAME"})],
    ),
    "cached_whole": ensemble([A], [B], chain("add_one", "add_one"), f"{BATCHED} {CACHED}"),
    "cached_step": ensemble([A], [B], chain("cached_add_one", "add_one"), BATCHED),
    "of_version_1": ensemble([A], [B], [Step("versions", {"IN": "A"}, {"OUT": "B"}, 1)]),
    "of_version_2": ensemble([A], [B], [Step("versions", {"IN": "A"}, {"OUT": "B"}, 2)]),
    "of_latest_version": ensemble([A], [B], [Step("versions", {"IN": "A"}, {"OUT": "B"})]),
}

STREAMING = {
    "repeat_alone": ensemble(
        [A],
        [ONE_OF_B, ONE_OF_C],
        [Step("repeat", {"IN": "A"}, {"OUT": "B", "INDEX": "C"})],
        DECOUPLED,
    ),
    "repeat_unsaid": ensemble([A], [ONE_OF_B], [Step("repeat", {"IN": "A"}, {"OUT": "B"})]),
    "repeat_then_add": ensemble(
        [A], [B], [REPEATING, Step("plain_add_one", {"IN": "EACH"}, {"OUT": "B"})], DECOUPLED
    ),
    "repeat_then_square": ensemble(
        [A], [ONE_OF_B], [REPEATING, Step("square", {"IN": "EACH"}, {"OUT": "B"})], DECOUPLED
    ),
    "add_then_repeat": ensemble(
        [A],
        [ONE_OF_B],
        [
            Step("plain_add_one", {"IN": "A"}, {"OUT": "MORE"}),
            Step("repeat", {"IN": "MORE"}, {"OUT": "B"}),
        ],
        DECOUPLED,
    ),
    "repeat_nested": ensemble(
        [A], [B], [Step("repeat_then_add", {"A": "A"}, {"B": "B"})], DECOUPLED
    ),
    "each_two_ways": ensemble(
        [A],
        [B, TOLD],
        [
            REPEATING,
            Step("plain_add_one", {"IN": "EACH"}, {"OUT": "B"}),
            Step("telling", {"LEFT": "EACH"}, {"TOLD": "TOLD"}),
        ],
        DECOUPLED,
    ),
    "said_but_single": ensemble([A], [B], [ADDING], f"{BATCHED} {DECOUPLED}"),
    "streamed_words": ensemble(
        [WORDS],
        [B],
        [
            Step("streaming_words", {"WORDS": "WORDS"}, {"OUT": "EACH"}),
            Step("plain_add_one", {"IN": "EACH"}, {"OUT": "B"}),
        ],
        DECOUPLED,
    ),
    "streamed_words_only": ensemble(
        [WORDS],
        [ONE_OF_B],
        [Step("streaming_words", {"WORDS": "WORDS"}, {"OUT": "B"})],
        DECOUPLED,
    ),
}

ENSEMBLES = {**COUPLED, **STREAMING}

# What is loaded and unloaded: no other ensemble uses these, nor the models of their steps.
FAMILY = {
    "outer": ensemble(
        [A],
        [D],
        [
            Step("inner", {"A": "A"}, {"B": "B"}),
            Step("joined", {"A": "B"}, {"B": "C"}),
            Step("adds", {"IN": "C"}, {"OUT": "D"}),
        ],
        BATCHED,
    ),
    "inner": ensemble([A], [B], chain("adds", "adds"), BATCHED),
    "joined": ensemble(
        [A],
        [B],
        [
            Step("adds", {"IN": "A"}, {"OUT": "MORE"}),
            Step("sums", {"LEFT": "A", "RIGHT": "MORE"}, {"SUM": "B"}),
        ],
        BATCHED,
    ),
    "too_large": ensemble([A], [B], chain("adds", "adds"), "max_batch_size: 16"),
}


def copies() -> dict[str, tuple[str, str]]:
    """Models with the source of another, and their own configuration."""

    def config(name: str) -> str:
        return (MODELS / name / "config.pbtxt").read_text()

    batching = f"{BATCHED}\n"
    return {
        "plain_add_one": ("add_one", config("add_one").replace(batching, "")),
        "cached_add_one": ("add_one", config("add_one") + CACHED),
        "streaming_words": ("scripted", config("scripted") + DECOUPLED),
        "waiting_again": ("waiting", config("waiting")),
        "waiting_in_queue": ("waiting", config("waiting") + QUEUE_WITH_TIMEOUTS),
        "adds": ("add_one", config("add_one")),
        "sums": ("sum_of_two", config("sum_of_two")),
    }


def write_repository(folder: Path) -> None:
    """All models, in `folder`."""
    shutil.copytree(
        MODELS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name, (source, config) in copies().items():
        shutil.copytree(folder / source / "1", folder / name / "1")
        (folder / name / "config.pbtxt").write_text(config)
    for name, config in {**ENSEMBLES, **FAMILY}.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
