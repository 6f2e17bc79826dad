# SPDX-License-Identifier: Apache-2.0
"""Ensembles that run: maps, batches, optional tensors, pruning, and what is passed on to steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ensemble_differential import asking
from tests.ensemble_differential.asking import by_both, by_http, numbers, rows
from tests.python_backend_differential import clients
from tests.python_backend_differential.clients import Arrays
from tests.recorded_suite import Case, Observation, Server


def inferred(name: str, model: str, inputs: Arrays, *outputs: str, **options: Any) -> Case:
    """A request over both protocols."""
    return Case(name, lambda server: by_both(server, model, inputs, *outputs, **options))


def counted(name: str, models: list[str], *requests: tuple[Any, ...]) -> Case:
    """What requests over HTTP add to the statistics of these models."""

    def ask(server: Server) -> Observation:
        before = asking.counts(server, *models)
        answers = [by_http(server, model, inputs, *outputs) for model, inputs, *outputs in requests]
        return {
            "answers": answers,
            "counts": asking.gained(before, asking.counts(server, *models)),
        }

    return Case(name, ask)


def called(name: str, path: str, body: Observation = None) -> Case:
    """The status and the JSON of one HTTP call."""
    return Case(name, lambda server: asking.call(server, path, body))


def posted(model: str, parameters: Observation, **fields: Any) -> Observation:
    """The body of a request to `telling_all`."""
    left = {"name": "LEFT", "datatype": "INT32", "shape": [1], "data": [1]}
    return {"inputs": [left], "parameters": parameters, **fields}


def bls(*words: str) -> Case:
    """A model that asks an ensemble."""
    text = " ".join(words)
    return Case(
        f"asked by a model: {text}",
        lambda server: by_http(server, "asking", {"WORDS": clients.text(text)}),
    )


def classified(server: Server) -> Observation:
    scores = [0.1, 0.5, 0.2, 0.9, 4, 3, 2, 1]
    return asking.call(
        server,
        "/models/labels/infer",
        {
            "inputs": [{"name": "A", "datatype": "FP32", "shape": [2, 4], "data": scores}],
            "outputs": [{"name": "B", "parameters": {"classification": 2}}],
        },
    )


ONE_ROW = {"A": rows(1)}
FOUR_ROWS = {"A": rows(0, 1, 2, 3)}
TELLING = "/models/telling_all/infer"

MAPS = (
    inferred("chain", "chain", FOUR_ROWS),
    inferred("chain with an id", "chain", ONE_ROW, request_id="mine"),
    inferred("diamond", "diamond", FOUR_ROWS),
    inferred("diamond: one output", "diamond", FOUR_ROWS, "C"),
    inferred("tensor between steps is an output", "inner_tensor_given", ONE_ROW),
    inferred("tensor between steps is the only output", "inner_tensor_given", ONE_ROW, "BETWEEN"),
    inferred("nested ensembles", "nested", FOUR_ROWS),
    inferred("step of version 1", "of_version_1", {"A": numbers(1)}),
    inferred("step of version 2", "of_version_2", {"A": numbers(1)}),
    inferred("step of the latest version", "of_latest_version", {"A": numbers(1)}),
    inferred("version of the ensemble", "chain", ONE_ROW, model_version="1"),
    inferred("unknown version of the ensemble", "chain", ONE_ROW, model_version="2"),
)

BATCHES = (
    counted("batch stays whole in all steps", ["chain", "add_one"], ("chain", FOUR_ROWS)),
    inferred("batch too large for the ensemble", "chain", {"A": np.zeros((9, 1), np.int32)}),
    inferred("rows for steps with batches", "chain_without_batches", FOUR_ROWS),
    inferred(
        "rows too many for steps with batches",
        "chain_without_batches",
        {"A": np.zeros((9, 1), np.int32)},
    ),
    inferred("steps without batches", "chain_of_plain_models", {"A": numbers(1, 2)}),
    inferred("batch of one for steps without batches", "batches_over_plain_models", ONE_ROW),
    inferred(
        "batch of two for steps without batches", "batches_over_plain_models", {"A": rows(1, 2)}
    ),
    inferred("batch of one for both kinds of steps", "mixed_models", ONE_ROW),
    inferred("batch of two for both kinds of steps", "mixed_models", {"A": rows(1, 2)}),
)

MISTAKES = (
    inferred("input of another type", "chain", {"A": np.zeros((1, 1), np.float32)}),
    inferred("input of another rank", "chain", {"A": np.zeros((1, 1, 1), np.int32)}),
    inferred("input without the batch", "chain", {"A": numbers(1)}),
    inferred("no input", "chain", {}),
    inferred("unknown output", "diamond", ONE_ROW, "MORE"),
    inferred("required input left out", "telling_of_required", {"LEFT": numbers(1)}),
)

OPTIONAL = (
    inferred("optional inputs: one", "telling_all", {"LEFT": numbers(1)}),
    inferred("optional inputs: both", "telling_all", {"LEFT": numbers(1), "RIGHT": numbers(2)}),
    inferred("optional inputs: none", "telling_all", {}),
    inferred(
        "optional input beside another step's output", "telling_after_a_step", {"RIGHT": numbers(1)}
    ),
    inferred("optional input that a step requires", "required_of_optional", {"RIGHT": rows(1)}),
    inferred(
        "optional input that a step requires, given",
        "required_of_optional",
        {"LEFT": rows(1), "RIGHT": rows(1)},
    ),
)

PRUNING = (
    counted(
        "pruned to one branch",
        ["branches", "telling", "plain_add_one"],
        ("branches", {"A": numbers(1)}, "B"),
    ),
    counted(
        "pruned to the other branch",
        ["branches", "telling", "plain_add_one"],
        ("branches", {"A": numbers(1)}, "TOLD"),
    ),
    counted(
        "not pruned", ["branches", "telling", "plain_add_one"], ("branches", {"A": numbers(1)})
    ),
    counted(
        "failing branch is not needed",
        ["words_beside", "scripted"],
        ("words_beside", {"WORDS": clients.text("raise"), "A": numbers(1)}, "C"),
    ),
)

FIELDS = (
    inferred("step sees the id", "telling_all", {}, request_id="mine"),
    inferred(
        "step sees parameters",
        "telling_all",
        {},
        parameters={"text": "b", "number": 5, "bool": True},
    ),
    inferred(
        "step sees the sequence",
        "telling_all",
        {},
        sequence_id=7,
        sequence_start=True,
        sequence_end=True,
    ),
    inferred(
        "step sees the sequence of a text",
        "telling_all",
        {},
        sequence_id="seven",
        sequence_start=True,
    ),
    Case(
        "step sees the timeout",
        lambda server: asking.by_grpc(server, "telling_all", {}, timeout=5_000_000),
    ),
    called("answer tells no sequence", TELLING, posted("telling_all", {})),
    called(
        "answer tells the sequence",
        TELLING,
        posted("telling_all", {"sequence_id": 7, "sequence_start": True}, id="mine"),
    ),
    called(
        "answer tells the sequence of a text",
        TELLING,
        posted("telling_all", {"sequence_id": "seven", "sequence_end": True}),
    ),
)

TOLD = (
    called("metadata", "/models/chain"),
    called("metadata of optional inputs", "/models/telling_all"),
    called("metadata of a decoupled ensemble", "/models/repeat_then_add"),
    called("config", "/models/chain/config"),
    called("config of a nested ensemble", "/models/nested/config"),
    called("config of an ensemble with a decoupled step", "/models/repeat_unsaid/config"),
    called("ready", "/models/chain/ready"),
    called("version not ready", "/models/chain/versions/2/ready"),
    called("generate", "/models/chain/generate", {"A": [4]}),
    called("generate_stream", "/models/chain/generate_stream", {"A": [4]}),
    called("generate with a parameter", "/models/telling_all/generate", {"LEFT": [4], "x": "y"}),
    Case("classification", classified),
    counted(
        "statistics of nested ensembles",
        ["nested", "chain", "diamond", "add_one", "sum_of_two"],
        ("nested", FOUR_ROWS),
        ("nested", ONE_ROW),
    ),
    bls("chain", "once", "B", "1", "2"),
    bls("diamond", "once", "C", "1", "2"),
    bls("chain", "once", "NO", "1"),
    bls("repeat_alone", "stream", "B", "4", "5"),
    bls("repeat_alone", "stream", "B"),
    bls("add_then_repeat", "stream", "B", "1", "2"),
    bls("repeat_alone", "once", "B", "1"),
)

CASES = (*MAPS, *BATCHES, *MISTAKES, *OPTIONAL, *PRUNING, *FIELDS, *TOLD)
