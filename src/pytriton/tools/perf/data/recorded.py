# SPDX-License-Identifier: Apache-2.0
"""Reads files of `pytriton record`, and makes input sets of what a model was sent."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

from pytriton.client.kserve.records import PlainTensor
from pytriton.protocol.recording import (
    MAGIC,
    Exchange,
    RecordedTensor,
    RecordingEnd,
    RecordingError,
    RecordingHead,
    RecordReader,
)
from pytriton.tools.perf.data.settings import InputData
from pytriton.tools.perf.errors import DataError
from pytriton.tools.perf.load.plan import InputSet

_READ_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class RecordingFile:
    """What a file has.

    Attributes:
        exchanges: In the order in which their requests arrived.
        end: None if the file was cut.
        problem: Why the rest of the file could not be read; empty: there is none.
    """

    head: RecordingHead
    exchanges: Sequence[Exchange]
    end: RecordingEnd | None
    problem: str = ""


def is_recording(path: pathlib.Path) -> bool:
    """Returns whether a file begins as recordings do; OSError if it cannot be read."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_recording(path: pathlib.Path) -> RecordingFile:
    """Read a file, up to the place where it was cut or is damaged.

    Raises:
        RecordingError: It is no recording.
        OSError: It cannot be read.
    """
    reader = RecordReader()
    head: RecordingHead | None = None
    end: RecordingEnd | None = None
    exchanges: list[Exchange] = []
    problem = ""
    with path.open("rb") as file:
        try:
            while data := file.read(_READ_BYTES):
                for record in reader.feed(data):
                    if isinstance(record, Exchange):
                        exchanges.append(record)
                    elif isinstance(record, RecordingHead):
                        head = record
                    else:
                        end = record
        except RecordingError as error:
            if head is None:
                raise
            problem = str(error)
    if head is None:
        raise RecordingError("expected a recording, got a file that ends before its first record")
    if not problem and end is None:
        problem = f"the file was cut after {reader.position} bytes"
    exchanges.sort(key=lambda each: each.arrived_ns)
    return RecordingFile(head, exchanges, end, problem)


def plain(tensor: RecordedTensor) -> PlainTensor:
    """Returns the tensor as clients have it."""
    return PlainTensor(tensor.name, tensor.datatype, tensor.shape, tensor.data)


def recorded_inputs(path: pathlib.Path, model: str) -> InputData:
    """Returns the inputs of all requests to a model, as they were sent, with their times.

    Those of a sequence are a stream of their own; then there are no times. Batches stay as large as
    they were.

    Raises:
        DataError: The file has no request to this model, or cannot be read.
    """
    try:
        exchanges = read_recording(path).exchanges
    except RecordingError as error:
        raise DataError(f"{path}: {error}") from error
    chosen = [exchange for exchange in exchanges if exchange.model == model]
    if not chosen:
        others = ", ".join(sorted({exchange.model for exchange in exchanges})) or "no model at all"
        raise DataError(f"{path} has no request to {model}, only to {others}")
    streams: dict[int | str, list[InputSet]] = {}
    for exchange in chosen:
        tensors = [plain(each) for each in exchange.inputs]
        inputs = InputSet(
            tensors={each.name: each.array() for each in tensors},
            datatypes={each.name: each.datatype for each in tensors},
        )
        streams.setdefault(exchange.correlation_id, []).append(inputs)
    first_ns = chosen[0].arrived_ns
    times = tuple((each.arrived_ns - first_ns) / 1e6 for each in chosen)
    return InputData(
        tuple(tuple(stream) for stream in streams.values()),
        times if len(streams) == 1 else (),
        is_given=True,
    )
