# SPDX-License-Identifier: Apache-2.0
"""The messages between the server and a process that parses JSON for it, over two pipes.

Each message is msgpack after its length in four bytes. A job is followed by the JSON text, and a
reply by the bytes of tensors or files.
"""

from __future__ import annotations

import enum
import struct

import msgspec

from pytriton.base import dtypes
from pytriton.base.messages import RequestFields
from pytriton.base.model_spec import ModelSpec, ModelTensor, SequenceSpec
from pytriton.protocol.shared_memory import RegionPlace

LENGTH = struct.Struct("<I")

Choice = tuple[bool, int, RegionPlace | None]  # an `OutputChoice`
encode = msgspec.msgpack.encode


class JobKind(enum.Enum):
    """The kind of request that a text contains."""

    INFER = "infer"
    GENERATE = "generate"
    LOAD = "load"
    OPENAI = "openai"


class InputDescription(msgspec.Struct, frozen=True, array_like=True):
    """The properties of an input that are needed to parse a request."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]


class ParsedModel(msgspec.Struct, frozen=True, array_like=True):
    """The properties of a model that are needed to parse a request."""

    name: str
    inputs: list[InputDescription]
    outputs: list[str]
    takes_parameters: bool = True  # False: unknown members are refused, and in other words
    max_batch_size: int = 0
    is_sequence: bool = False
    nullable: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: ModelSpec) -> ParsedModel:
        """Make a description from the specification of a model."""
        inputs = [
            InputDescription(tensor.name, tensor.dtype.name, tensor.dims, tensor.shape)
            for tensor in spec.inputs.values()
        ]
        return cls(
            spec.name,
            inputs,
            list(spec.outputs),
            spec.takes_parameters,
            spec.max_batch_size,
            spec.sequence is not None,
            spec.nullable,
        )

    def spec(self) -> ModelSpec:
        """Returns a specification with these properties only."""
        inputs = {tensor.name: _tensor_spec(tensor) for tensor in self.inputs}
        outputs = {
            name: _tensor_spec(InputDescription(name, "FP32", (), ())) for name in self.outputs
        }
        return ModelSpec(
            name=self.name,
            version=0,
            platform="",
            max_batch_size=self.max_batch_size,
            inputs=inputs,
            outputs=outputs,
            required_inputs=frozenset(),
            batcher=None,
            sequence=SequenceSpec() if self.is_sequence else None,
            takes_parameters=self.takes_parameters,
            nullable=self.nullable,
        )


def _tensor_spec(tensor: InputDescription) -> ModelTensor:
    dtype = dtypes.BY_NAME[tensor.datatype]
    return ModelTensor(name=tensor.name, dtype=dtype, dims=tensor.dims, shape=tensor.shape)


class Job(msgspec.Struct, frozen=True):
    """A text to parse; it follows this message."""

    kind: JobKind
    text_bytes: int
    max_bytes: int  # the largest size of a tensor
    body_bytes: int = 0  # the size of the whole body, whose binary tensors are not sent
    model: ParsedModel | None = None
    task: bytes = b""  # of OpenAI's routes; see `protocol.openai.large_body`


class ParsedTensor(msgspec.Struct, frozen=True, array_like=True):
    """An input. Its bytes follow this message, or are in the body of the request after its JSON."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int
    is_binary: bool
    place: RegionPlace | None = None  # in the client's shared memory; no bytes follow


class ParsedRequest(msgspec.Struct, frozen=True, tag="request"):
    """An inference request without its bytes."""

    tensors: list[ParsedTensor]
    fields: RequestFields
    outputs: tuple[str, ...] | None
    output_default: Choice = (False, 0, None)
    output_choices: dict[str, Choice] = {}
    uses_regions: bool = False

    @property
    def payload_sizes(self) -> list[int]:
        """The sizes of the tensors that follow."""
        return [tensor.size for tensor in self.tensors if not (tensor.is_binary or tensor.place)]


class ReadLoad(msgspec.Struct, frozen=True, tag="load"):
    """A load request without its files."""

    config: str | None
    file_sizes: dict[str, int]

    @property
    def payload_sizes(self) -> list[int]:
        """The sizes of the files that follow."""
        return list(self.file_sizes.values())


class ReadOpenAI(msgspec.Struct, frozen=True, tag="openai"):
    """A request of OpenAI's routes without its tensors; see `protocol.openai.large_body`."""

    document: bytes
    payload_sizes: list[int]


class RefusedText(msgspec.Struct, frozen=True, tag="refused"):
    """The error of an invalid text; `code` is one of `pytriton.base.errors.ErrorCode`."""

    code: int
    message: str

    @property
    def payload_sizes(self) -> list[int]:
        """Nothing follows."""
        return []


Reply = ParsedRequest | ReadLoad | ReadOpenAI | RefusedText

decode_job = msgspec.msgpack.Decoder(Job).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
