# SPDX-License-Identifier: Apache-2.0
"""The models of the workload, as bound functions and as a model repository, and their answers.

`ANSWERS` computes the right answer from the inputs alone, without numpy and without a model. Values
are made from the number of their call, so that the answer to another call is noticed.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import (
    ControlKind,
    DirectStrategy,
    DynamicBatcher,
    ModelConfig,
    OldestStrategy,
    QueuePolicy,
    RateLimiter,
    RateLimiterResource,
    SequenceBatcher,
    SequenceControl,
    Tensor,
)
from tests.workload.calls import Call, TensorData, join_texts, make_tensor

REPOSITORY = pathlib.Path(__file__).parent / "model_repository"
# Models whose code is that of another, which has it in its folder.
SAME_CODE = {"accumulate_oldest": "accumulate_direct"}
# What a server needs to serve all of them as they are meant.
CACHE_CONFIG = "local,size=1048576"
RATE_LIMIT = "execution_count"
SERVER_FLAGS = (
    f"--cache-config={CACHE_CONFIG}",
    f"--rate-limit={RATE_LIMIT}",
    "--allow-client-shm=true",
)
TRITON_SETTINGS = {
    "cache_config": [CACHE_CONFIG],
    "rate_limit": RATE_LIMIT,
    "allow_client_shm": True,
}

WIDTH = 4  # elements of a row
_WORK_S = 0.001  # of models that others wait for: for a resource, or in a sequence
SLOW_QUEUE_SIZE = 16
SLOW_TIMEOUT_US = 2_000_000
SLOW_PRIORITIES = 3
# Sequences whose clients left keep their slots for this time, while others wait for one.
SEQUENCE_IDLE_US = 4_000_000
SEQUENCE_SLOTS = 4
MAX_ROWS = 8
CACHE_KEYS = 32
LONGEST_SEQUENCE = 48  # each step has a bit of a number of 64

# Rows that a batch may have; one, for models that are not here.
LARGEST_BATCHES = {
    **dict.fromkeys(("double", "strings", "cached", "limited", "pipeline", "caller"), MAX_ROWS),
    **dict.fromkeys(("accumulate_direct", "accumulate_oldest", "accumulate_text"), SEQUENCE_SLOTS),
    "slow": 2,
    "large": 4,
}

SEQUENCE_MODELS = ("accumulate_direct", "accumulate_oldest")
TEXT_SEQUENCE_MODEL = "accumulate_text"  # its sequences have texts as ids
ENSEMBLES = ("pipeline",)
DECOUPLED_MODELS = ("stream", "chat")
# Which models a request of a model calls, and how often.
INNER_CALLS = {"pipeline": {"double": 2}, "caller": {"double": 1}}


@dataclasses.dataclass(frozen=True, slots=True)
class BoundModel:
    """The arguments of `Triton.bind`; `infer_func` may be a list, one callable for an instance."""

    name: str
    infer_func: Any
    inputs: list[Tensor]
    outputs: list[Tensor]
    config: ModelConfig


# Bound functions


def double(requests: Any) -> list[dict[str, Any]]:
    return [{"OUT": request["IN"] * 2} for request in requests]


def reverse(requests: Any) -> list[dict[str, Any]]:
    return [{"OUT": _each(request["IN"], lambda text: text[::-1])} for request in requests]


def _each(texts: Any, function: Callable[[bytes], bytes]) -> Any:
    flat = [function(text) for text in texts.ravel()]
    return np.array(flat, np.object_).reshape(texts.shape)


def wait_and_pass_on(requests: Any) -> list[dict[str, Any]]:
    """Wait for the longest of the times that the requests of the batch name."""
    time.sleep(max(int(request["DELAY_US"].max()) for request in requests) / 1e6)
    return [{"OUT": request["IN"]} for request in requests]


def count_up(requests: Any) -> Iterator[list[dict[str, Any]]]:
    (request,) = requests
    tag, delay_us = int(request["TAG"][0]), int(request["DELAY_US"][0])
    for index in range(int(request["COUNT"][0])):
        if delay_us:
            time.sleep(delay_us / 1e6)
        yield [{"OUT": np.array([tag, index], np.int32)}]


def refuse_odd(requests: Any) -> list[dict[str, Any]]:
    (request,) = requests
    if request["IN"][0] % 2:
        raise ValueError(f"odd {request['IN'][0]}")
    return [{"OUT": request["IN"]}]


class Accumulate:
    """Sums of sequences, by their ids; -1 where a sequence has no sum that it should have."""

    def __init__(self) -> None:
        self.sums: dict[int | bytes, int] = {}

    @batch
    def __call__(self, **inputs: Any) -> dict[str, Any]:
        time.sleep(_WORK_S)
        values, ids = inputs["IN"].ravel(), inputs["CORRID"].ravel()
        starts, ends, readies = (inputs[name].ravel() for name in ("START", "END", "READY"))
        sums = np.zeros(len(values), np.int64)
        for row, key in enumerate(ids.tolist()):
            if not readies[row]:
                continue
            before = 0 if starts[row] else self.sums.get(key)
            sums[row] = -1 if before is None else before + values[row]
            self.sums[key] = int(sums[row])
            if ends[row]:
                del self.sums[key]
        return {"OUT": sums.reshape(-1, 1), "ID": ids.reshape(-1, 1)}


def triple(requests: Any) -> list[dict[str, Any]]:
    return [{"OUT": request["IN"] * 3} for request in requests]


def add_one(requests: Any) -> list[dict[str, Any]]:
    time.sleep(_WORK_S)
    return [{"OUT": request["IN"] + 1} for request in requests]


def repeat_words(requests: Any) -> Iterator[list[dict[str, Any]]]:
    (request,) = requests
    ((name, given),) = request.data.items()
    text = given.item().decode()
    for word in (json.loads(text)[-1]["content"] if name == "messages" else text).split():
        yield [{"text": np.array([f"{word} ".encode()], np.object_)}]


def pass_on(requests: Any) -> list[dict[str, Any]]:
    return [{"OUT": request["IN"]} for request in requests]


def bound_models() -> list[BoundModel]:
    """All models that can be bound functions; each call makes models with states of their own."""
    row = [Tensor(name="IN", dtype=np.int32, shape=(WIDTH,))]
    out = [Tensor(name="OUT", dtype=np.int32, shape=(WIDTH,))]
    one, one_out = _scalars(np.int32, "IN"), _scalars(np.int32, "OUT")
    resources = [RateLimiterResource("R", 1)]
    policy = QueuePolicy(
        max_queue_size=SLOW_QUEUE_SIZE,
        default_timeout_microseconds=SLOW_TIMEOUT_US,
        allow_timeout_override=True,
    )
    queue = DynamicBatcher(
        priority_levels=SLOW_PRIORITIES, default_priority_level=2, default_queue_policy=policy
    )
    stream = ModelConfig(batching=False, decoupled=True)
    return [
        BoundModel("double", [double, double], row, out, ModelConfig(max_batch_size=MAX_ROWS)),
        BoundModel(
            "strings",
            reverse,
            _scalars(np.bytes_, "IN"),
            _scalars(np.bytes_, "OUT"),
            # It takes turns with `limited`, which needs the same resource.
            ModelConfig(max_batch_size=MAX_ROWS, rate_limiter=RateLimiter(resources)),
        ),
        BoundModel(
            "slow",
            wait_and_pass_on,
            [*one, *_scalars(np.int32, "DELAY_US")],
            one_out,
            ModelConfig(max_batch_size=2, batcher=queue),
        ),
        BoundModel(
            "stream",
            count_up,
            _scalars(np.int32, "COUNT", "TAG", "DELAY_US"),
            [Tensor(name="OUT", dtype=np.int32, shape=(2,))],
            stream,
        ),
        BoundModel("fails", refuse_odd, one, one_out, ModelConfig(batching=False)),
        *_sequence_models(),
        BoundModel(
            "cached", triple, row, out, ModelConfig(max_batch_size=MAX_ROWS, response_cache=True)
        ),
        BoundModel(
            "limited",
            [add_one, add_one],
            row,
            out,
            ModelConfig(max_batch_size=MAX_ROWS, rate_limiter=RateLimiter(resources)),
        ),
        BoundModel(
            "chat",
            repeat_words,
            [
                Tensor(name=name, dtype=np.bytes_, shape=(1,), optional=True)
                for name in ("messages", "prompt")
            ],
            _scalars(np.bytes_, "text"),
            ModelConfig(batching=False, decoupled=True, openai="chat,completions"),
        ),
        BoundModel(
            "large",
            pass_on,
            [Tensor(name="IN", dtype=np.float32, shape=(-1,))],
            [Tensor(name="OUT", dtype=np.float32, shape=(-1,))],
            ModelConfig(max_batch_size=4),
        ),
    ]


def _scalars(dtype: Any, *names: str) -> list[Tensor]:
    return [Tensor(name=name, dtype=dtype, shape=(1,)) for name in names]


def _sequence_models() -> list[BoundModel]:
    return [
        _sequence_model("accumulate_direct", DirectStrategy(), np.uint64),
        _sequence_model("accumulate_oldest", OldestStrategy(SEQUENCE_SLOTS), np.uint64),
        _sequence_model(TEXT_SEQUENCE_MODEL, OldestStrategy(SEQUENCE_SLOTS), np.bytes_),
    ]


def _sequence_model(name: str, strategy: Any, id_type: Any) -> BoundModel:
    controls = [
        SequenceControl(kind, dtype=id_type if kind is ControlKind.CORRID else None)
        for kind in ControlKind
    ]
    return BoundModel(
        name,
        Accumulate(),
        _scalars(np.int64, "IN"),
        [*_scalars(np.int64, "OUT"), *_scalars(id_type, "ID")],
        ModelConfig(
            max_batch_size=SEQUENCE_SLOTS,
            sequence=SequenceBatcher(strategy, SEQUENCE_IDLE_US, controls),
        ),
    )


def bind_models(triton: Any) -> list[str]:
    """Bind all of them to a `Triton` with `TRITON_SETTINGS`; returns their names."""
    models = bound_models()
    for model in models:
        triton.bind(model.name, model.infer_func, model.inputs, model.outputs, config=model.config)
    return [model.name for model in models]


def repository_models() -> list[str]:
    """The names of the models of the repository."""
    return sorted(path.parent.name for path in REPOSITORY.glob("*/config.pbtxt"))


def write_repository(folder: pathlib.Path, *names: str) -> list[str]:
    """Write these models, or all, as a repository that does not need this package.

    A server needs `SERVER_FLAGS` to serve all of them as they are meant. Returns the names.
    """
    chosen = list(names) or repository_models()
    for name in chosen:
        shutil.copytree(REPOSITORY / name, folder / name, dirs_exist_ok=True)
        (folder / name / "1").mkdir(exist_ok=True)
        if name in SAME_CODE:
            shutil.copy(REPOSITORY / SAME_CODE[name] / "1" / "model.py", folder / name / "1")
    return chosen


# Inputs


def base_value(number: int) -> int:
    """A number that only this call of a run has, unless there are more than 16 million."""
    return (number % (1 << 24)) * 64


def rows_of(number: int, rows: int = 1) -> tuple[TensorData, ...]:
    """The input of `double`, `pipeline`, `limited` and `caller`."""
    base = base_value(number)
    raw = struct.pack(f"<{rows * WIDTH}i", *range(base, base + rows * WIDTH))
    return (TensorData("IN", "INT32", (rows, WIDTH), raw),)


def cached_rows(key: int) -> tuple[TensorData, ...]:
    """The input of `cached`; requests with the same key have the same answer."""
    return rows_of(key % CACHE_KEYS)


def texts_of(number: int, rows: int = 1, *, is_exotic: bool = False) -> tuple[TensorData, ...]:
    """The input of `strings`; exotic texts are no UTF-8, so they cannot be sent as JSON."""
    end = b" \x00\xff" if is_exotic else b""
    texts = [f"{number}/{row}".encode() + end for row in range(rows)]
    return (TensorData("IN", "BYTES", (rows, 1), join_texts(texts)),)


def slow_inputs(number: int, delay_us: int) -> tuple[TensorData, ...]:
    return (
        make_tensor("IN", "INT32", (1, 1), [base_value(number)]),
        make_tensor("DELAY_US", "INT32", (1, 1), [delay_us]),
    )


def stream_inputs(number: int, count: int, delay_us: int = 0) -> tuple[TensorData, ...]:
    return (
        make_tensor("COUNT", "INT32", (1,), [count]),
        make_tensor("TAG", "INT32", (1,), [base_value(number)]),
        make_tensor("DELAY_US", "INT32", (1,), [delay_us]),
    )


def fails_inputs(number: int, *, fails: bool) -> tuple[TensorData, ...]:
    return (make_tensor("IN", "INT32", (1,), [base_value(number) + fails]),)


def step_value(index: int) -> int:
    """What a step adds to its sequence: a bit, so that a sum tells which steps are in it."""
    return 1 << index


def step_inputs(index: int) -> tuple[TensorData, ...]:
    """The input of the models with sequences."""
    return (make_tensor("IN", "INT64", (1, 1), [step_value(index)]),)


def large_inputs(number: int, elements: int) -> tuple[TensorData, ...]:
    """The number of the call in each element, and the place of the element in every 64th."""
    values = np.full(elements, number % (1 << 24), np.float32)
    values[::64] = np.arange(0, elements, 64)
    return (TensorData("IN", "FP32", (1, elements), values.tobytes()),)


def chat_text(number: int, words: int) -> str:
    return " ".join(f"w{number}.{index}" for index in range(words))


# Right answers

Outputs = tuple[TensorData, ...]


def _scaled(factor: int, addend: int = 0) -> Callable[[Call], list[Outputs]]:
    def answer(call: Call) -> list[Outputs]:
        (tensor,) = call.inputs
        values = [factor * each + addend for each in tensor.values()]
        return [(make_tensor("OUT", "INT32", tensor.shape, values),)]

    return answer


def _reversed(call: Call) -> list[Outputs]:
    (tensor,) = call.inputs
    texts = [text[::-1] for text in tensor.values()]
    return [(make_tensor("OUT", "BYTES", tensor.shape, texts),)]


def _same(call: Call) -> list[Outputs]:
    tensor = call.inputs[0]
    return [(tensor._replace(name="OUT"),)]


def _counted(call: Call) -> list[Outputs]:
    count, tag, _ = (tensor.values()[0] for tensor in call.inputs)
    return [(make_tensor("OUT", "INT32", (2,), [tag, index]),) for index in range(count)]


def _words(call: Call) -> list[Outputs]:
    texts = [f"{word} ".encode() for word in call.text.split()]
    return [(make_tensor("text", "BYTES", (1,), [text]),) for text in texts]


# By model: the responses that a call has to get. Those of sequences depend on what was before.
ANSWERS: dict[str, Callable[[Call], list[Outputs]]] = {
    "double": _scaled(2),
    "strings": _reversed,
    "slow": _same,
    "stream": _counted,
    "fails": _same,
    "pipeline": _scaled(4),
    "cached": _scaled(3),
    "limited": _scaled(1, 1),
    "caller": _scaled(2),
    "chat": _words,
    "large": _same,
}


def failure_of(call: Call) -> str:
    """The text that the model's own error has to have, or an empty one."""
    if call.model == "fails":
        value = call.inputs[0].values()[0]
        return f"odd {value}" if value % 2 else ""
    return ""
