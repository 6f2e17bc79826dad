# SPDX-License-Identifier: Apache-2.0
"""What is sent where, and how much: the plan of a load, and its levels.

A plan stays the same for all levels. There is one record for each way to decide when the next
request begins.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from numpy.typing import NDArray

from pytriton.client.kserve.address import Address, AddressError, Tls, parse_address
from pytriton.tools.perf.errors import GeneratorError

ParameterValue = bool | int | float | str


class LoadProtocol(enum.Enum):
    """The protocol that the server is asked with."""

    HTTP = "http"
    GRPC = "grpc"


class TensorFormat(enum.Enum):
    """How tensors are written over HTTP."""

    BINARY = "binary"
    JSON = "json"


class Compression(enum.Enum):
    """How requests are compressed: the body over HTTP, each message over gRPC."""

    NONE = "none"
    GZIP = "gzip"
    DEFLATE = "deflate"


class TensorMemory(enum.Enum):
    """Where tensors are: in the requests, or in regions that the requests name."""

    NONE = "none"
    SYSTEM = "system"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class InputSet:
    """The tensors of one request.

    Attributes:
        tensors: An array for each input that is sent, with its batch axis if the model has one.
            Strings are arrays of objects, each `bytes` or `str`.
        datatypes: Triton's name of the datatype for inputs whose array does not tell it.
        expected: The outputs that a right answer has; None: the answer is not looked at.
            An answer that differs counts as failed.
    """

    tensors: Mapping[str, NDArray[Any]]
    datatypes: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, NDArray[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Sequences:
    """How requests form sequences, for models that keep a state.

    Attributes:
        at_once: How many sequences are under way with a request rate, intervals or a schedule;
            with a concurrency, its number counts instead.
        length: Requests of a sequence; None: as many as its stream of input sets has.
        length_variation: How far a length may differ from `length`, in percent.
        first_id: The id of the first sequence.
        last_id: The id after which they begin with `first_id` again; None: never.
        seed: Makes the lengths; the same seed makes the same lengths.
    """

    at_once: int = 4
    length: int | None = 20
    length_variation: float = 20.0
    first_id: int = 1
    last_id: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is sent where.

    Attributes:
        url: `host:port`, or with `http://`, `https://`, `grpc://` or `grpcs://` in front.
        protocol: HTTP or gRPC.
        model: The model's name.
        inputs: Streams of input sets. Requests take the sets of all streams in turns; with
            sequences, each sequence takes the next stream, from its first set.
        version: The model's version; empty: the server's choice.
        outputs: The names of the outputs that are asked for; empty: all.
        streaming: Over gRPC, requests go through ModelStreamInfer; over HTTP, through the route
            generate_stream.
        decoupled: A request may have no response, one or many; needs `streaming`.
        input_format: How inputs are written over HTTP.
        output_format: How outputs are asked for over HTTP.
        headers: Headers of each request (metadata over gRPC).
        parameters: Request parameters of each request.
        sequences: How requests form sequences; None: they do not.
        shared_memory: Where inputs and outputs are.
        output_region_bytes: The size of the region of one output.
        compression: How requests are compressed.
        tls: Encrypted connections; None: plain ones, unless the URL begins with https or grpcs.
        processes: Processes that make the load; 0: one, or more if cores are there and the level
            asks for it.
        keep_outputs: True keeps the outputs of each response, for exports.
    """

    url: str
    protocol: LoadProtocol
    model: str
    inputs: Sequence[Sequence[InputSet]]
    version: str = ""
    outputs: Sequence[str] = ()
    streaming: bool = False
    decoupled: bool = False
    input_format: TensorFormat = TensorFormat.BINARY
    output_format: TensorFormat = TensorFormat.BINARY
    headers: Sequence[tuple[str, str]] = ()
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    sequences: Sequences | None = None
    shared_memory: TensorMemory = TensorMemory.NONE
    output_region_bytes: int = 102_400
    compression: Compression = Compression.NONE
    tls: Tls | None = None
    processes: int = 0
    keep_outputs: bool = False


class Arrivals(enum.Enum):
    """How the requests of a rate are spread over time."""

    CONSTANT = "constant"
    POISSON = "poisson"


class Concurrency(msgspec.Struct, frozen=True, tag=True):
    """Keep a number of requests under way.

    Attributes:
        number: The requests under way at any time, or the sequences, if the plan has sequences.
    """

    number: int


class RequestRate(msgspec.Struct, frozen=True, tag=True):
    """Begin a number of requests each second, however long they take.

    Attributes:
        per_second: The requests each second; may be a fraction.
        distribution: Evenly spaced, or with the random gaps of independent clients.
        seed: Makes the random gaps; the same seed makes the same gaps.
    """

    per_second: float
    distribution: Arrivals = Arrivals.CONSTANT
    seed: int = 0


class Intervals(msgspec.Struct, frozen=True, tag=True):
    """Wait these times between the beginnings of requests, again and again from the first.

    Attributes:
        microseconds: The times, at least one, and not all zero.
    """

    microseconds: tuple[int, ...]


class FixedSchedule(msgspec.Struct, frozen=True, tag=True):
    """Begin each request at its own time, once.

    Attributes:
        milliseconds: The times from the start, not falling. Request `i` takes input set `i`,
            again from the first if there are fewer.
    """

    milliseconds: tuple[float, ...]


class PeriodicConcurrency(msgspec.Struct, frozen=True, tag=True):
    """Begin with some requests, and `step` more after each `period` responses, up to `end` in all.

    Each request is sent once. The level is done when all of them have ended.

    Attributes:
        start: The requests at the beginning.
        end: The requests in all.
        step: How many begin together.
        period: How many responses of the requests that began last let the next ones begin.
    """

    start: int
    end: int
    step: int = 1
    period: int = 10


Level = Concurrency | RequestRate | Intervals | FixedSchedule | PeriodicConcurrency


def parse_load_address(url: str, protocol: str, tls: Tls | None) -> Address:
    """Read the address of a load; gRPC servers may also be given with http or https.

    Args:
        url: `host:port`, with or without a scheme.
        protocol: "http" or "grpc".
        tls: Encrypted connections, whatever the scheme; None: as the scheme says.

    Raises:
        GeneratorError: It is malformed, or its scheme is not the protocol.
    """
    if protocol == "grpc" and url.startswith(("http://", "https://")):
        url = f"grpc{url.removeprefix('http')}"
    try:
        address = parse_address(url, protocol)
    except AddressError as error:
        raise GeneratorError(str(error)) from error
    return replace(address, uses_tls=address.uses_tls or tls is not None)
