# SPDX-License-Identifier: Apache-2.0
"""The compared models: what their configurations say about tensors, and code that echoes.

`SEEN` is what the model got: name, dtype and shape of each input, and the number of requests.
"""

from __future__ import annotations

from pathlib import Path

ECHO = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])

    def execute(self, requests):
        return [self.respond(request, len(requests)) for request in requests]

    def respond(self, request, count):
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        seen = [f"{name} {array.dtype} {list(array.shape)}" for name, array in arrays.items()]
        seen = np.array([f"{'; '.join(seen)} of {count}".encode()], dtype=object)
        if self.config["max_batch_size"]:
            seen = np.repeat(seen[None], len(arrays["IN"]), axis=0)
        outputs = [pb_utils.Tensor("OUT", arrays["IN"]), pb_utils.Tensor("SEEN", seen)]
        return pb_utils.InferenceResponse(outputs)
"""
STREAM = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            array = request.inputs()[0].as_numpy()
            sender = request.get_response_sender()
            for part in (array.reshape(len(array), 2, 2), array[:, :3], array + 1):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", part)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
BATCHING = "max_batch_size: 8 "
LABELS = "cat\ndog\nbird\n"


def gathering(rows: int) -> str:
    """A batcher that waits for this number of rows."""
    return (
        f"{BATCHING} dynamic_batching {{ preferred_batch_size: [ {rows} ] "
        "max_queue_delay_microseconds: 300000 } "
    )


def tensor(kind: str, name: str, dims: list[int], extra: str = "", dtype: str = "FP32") -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{dtype} dims: {dims} {extra} }} '


def echo(
    dims: list[int], extra: str = "", out_dims: list[int] | None = None, out_extra: str = "",
    dtype: str = "FP32",
) -> str:  # fmt: skip
    """The tensors of an echo."""
    return (
        tensor("input", "IN", dims, extra, dtype)
        + tensor("output", "OUT", out_dims or dims, out_extra, dtype)
        + tensor("output", "SEEN", [1], dtype="STRING")
    )


def reshape(*dims: int) -> str:
    return f"reshape {{ shape: {list(dims)} }}"


SQUARE = reshape(2, 2)
RAGGED = "allow_ragged_batch: true"
LABELLED = 'label_filename: "labels.txt"'

GOOD = {
    "batched": BATCHING + echo([4], SQUARE, out_extra=SQUARE),
    "unbatched": echo([4], SQUARE, [2, 2], reshape(4)),
    "scalars": gathering(6) + echo([1], reshape(), out_extra=reshape()),
    "variable": BATCHING
    + echo([-1, 4, -1], reshape(-1, 2, 2, -1), out_extra=reshape(-1, 2, 2, -1)),
    "strings": BATCHING + echo([4], SQUARE, out_extra=SQUARE, dtype="STRING"),
    "only_output": BATCHING + echo([-1], out_dims=[4], out_extra=SQUARE),
    "only_output_unbatched": echo([-1], out_dims=[4], out_extra=SQUARE),
    "variable_output": BATCHING
    + echo([-1, -1], out_dims=[-1, 4], out_extra=reshape(-1, 2, 2)),
    "ragged": gathering(4) + echo([-1], RAGGED),
    "ragged_strings": gathering(4) + echo([-1, -1], RAGGED, dtype="STRING"),
    "ragged_reshaped": gathering(2)
    + echo([-1, 4], f"{RAGGED} {reshape(-1, 2, 2)}", out_extra=reshape(-1, 2, 2)),
    "ragged_optional": gathering(2)
    + echo([-1], RAGGED)
    + tensor("input", "MAY", [-1], f"{RAGGED} optional: true", "STRING"),
    "ragged_fixed": gathering(3) + echo([2], RAGGED),
    "ragged_unbatched": echo([-1], RAGGED),
    "not_ragged": gathering(4) + echo([-1]),
    "batch_tensors": gathering(4)
    + echo([-1], RAGGED)
    + 'batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ALL" '
    'data_type: TYPE_INT32 source_input: "IN" } '
    'batch_input { kind: BATCH_ITEM_SHAPE target_name: "ITEM" '
    'data_type: TYPE_FP32 source_input: "IN" } '
    'batch_output { target_name: "OUT" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "IN" }',
    "labelled": BATCHING + echo([4], SQUARE, out_extra=f"{SQUARE} {LABELLED}"),
    "labelled_unbatched": echo([4], out_extra=LABELLED),
    "squares": BATCHING + echo([2, 2]),
    "squares_of_any": BATCHING + echo([-1, 4], out_dims=[-1, 2, 2]),
    "stream": BATCHING
    + "model_transaction_policy { decoupled: true } "
    + tensor("input", "IN", [4])
    + tensor("output", "OUT", [4], SQUARE),
}  # fmt: skip


def ensemble(dims: list[int], *steps: str, extra: str = "", out_extra: str = "") -> str:
    """An ensemble in which each of these models, with inputs IN and outputs OUT, follows another.

    A model may be an ensemble itself, which is written as its name in brackets.
    """
    names = ["X", *(f"between{number}" for number in range(1, len(steps))), "Y"]
    text = ""
    for number, model in enumerate(steps):
        read, written = ("X", "Y") if model.startswith("[") else ("IN", "OUT")
        text += (
            f'step {{ model_name: "{model.strip("[]")}" model_version: -1 '
            f'input_map {{ key: "{read}" value: "{names[number]}" }} '
            f'output_map {{ key: "{written}" value: "{names[number + 1]}" }} }} '
        )
    tensors = tensor("input", "X", dims, extra) + tensor("output", "Y", dims, out_extra)
    return f'{BATCHING} platform: "ensemble" {tensors} ensemble_scheduling {{ {text} }}'


ENSEMBLES = {
    "classified": ensemble([4], "labelled"),
    "classified_by_itself": ensemble([4], "labelled", out_extra=LABELLED),
    "classified_through_another": ensemble([4], "[classified]"),
    "classified_by_the_last": ensemble([4], "labelled", "batched"),
    "reshaped_ensemble": ensemble([4], "squares", extra=SQUARE, out_extra=SQUARE),
    "reshaped_in_steps": ensemble([4], "batched", "batched"),
    "reshaped_with_other_rank": ensemble([-1, 4], "squares_of_any", out_extra=reshape(-1, 2, 2)),
    "ragged_ensemble": ensemble([-1], "ragged", extra=RAGGED),
}


def batch_input(kind: str, *sources: str, dtype: str = "data_type: TYPE_INT32") -> str:
    names = ", ".join(f'"{name}"' for name in sources)
    return (
        f"{BATCHING} {echo([-1], RAGGED)} batch_input {{ kind: BATCH_{kind} "
        f'target_name: "TARGET" {dtype} source_input: [ {names} ] }}'
    )


def batch_output(targets: str, *sources: str) -> str:
    names = ", ".join(f'"{name}"' for name in sources)
    return (
        f"{BATCHING} {echo([-1], RAGGED)} batch_output {{ target_name: {targets} "
        f"source_input: [ {names} ] }}"
    )


REFUSED = {
    "count_of_two": batch_input("ELEMENT_COUNT", "IN", "IN"),
    "sum_of_two": batch_input("ACCUMULATED_ELEMENT_COUNT", "IN", "IN"),
    "sum_with_zero_of_two": batch_input("ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "IN", "IN"),
    "maximum_of_none": batch_input("MAX_ELEMENT_COUNT_AS_SHAPE"),
    "item_shape_of_none": batch_input("ITEM_SHAPE"),
    "flat_shape_of_two": batch_input("ITEM_SHAPE_FLATTEN", "IN", "IN"),
    "count_of_unknown": batch_input("ELEMENT_COUNT", "NO"),
    "count_in_int64": batch_input("ELEMENT_COUNT", "IN", dtype="data_type: TYPE_INT64"),
    "count_in_nothing": batch_input("ELEMENT_COUNT", "IN", dtype=""),
    "count_of_two_unknown_in_int64": batch_input(
        "ELEMENT_COUNT", "NO", "NO", dtype="data_type: TYPE_INT64"
    ),
    "output_from_none": batch_output('"OUT"'),
    "output_from_two": batch_output('"NO"', "NO", "NO"),
    "output_from_unknown": batch_output('"NO"', "NO"),
    "output_that_is_unknown": batch_output('"NO"', "IN"),
    "output_twice": batch_output('["OUT", "OUT"]', "IN"),
    "shape_tensor": echo([4], "is_shape_tensor: true"),
    "non_linear_input": echo([4], "is_non_linear_format_io: true"),
    "non_linear_output": echo([4], out_extra="is_non_linear_format_io: true"),
    "reshaped_otherwise": BATCHING + echo([-1, 4], reshape(2, 2, -1)),
    "reshaped_to_more": BATCHING + echo([4], reshape(2, 3)),
    "reshaped_to_scalar": echo([1], reshape()),
}
# Here the real server's words are about a library that it cannot load.
STRATEGY = {
    "batching_library": gathering(2)
    + echo([4])
    + 'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "/none.so" } }',
}


def write_repository(folder: Path) -> None:
    """Write all models to a new folder."""
    for name, config in {**GOOD, **REFUSED, **STRATEGY, **ENSEMBLES}.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        if name in ENSEMBLES:
            (folder / name / "config.pbtxt").write_text(config)
            (folder / name / "labels.txt").write_text(LABELS.upper())
        else:
            (folder / name / "config.pbtxt").write_text(f'backend: "python" {config}')
            (folder / name / "labels.txt").write_text(LABELS)
            (version / "model.py").write_text(STREAM if name == "stream" else ECHO)
