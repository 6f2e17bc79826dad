# SPDX-License-Identifier: Apache-2.0
"""What the server and a process that reads JSON for it say to each other, over two pipes.

Each message is a head of four bytes, its length, and msgpack. The JSON text follows a job, and the
bytes of tensors or files follow a result.
"""

from __future__ import annotations

import enum
import struct

import msgspec

from pytriton import dtypes
from pytriton.engine.model_spec import ModelSpec, TensorSpec
from pytriton.messages import ParameterValue

LENGTH = struct.Struct("<I")


class Kind(enum.Enum):
    """What a text is."""

    INFER = "infer"
    GENERATE = "generate"
    LOAD = "load"


class PortForm(msgspec.Struct, frozen=True, array_like=True):
    """What reading a request needs to know of an input."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]


class ModelForm(msgspec.Struct, frozen=True, array_like=True):
    """What reading a request needs to know of its model."""

    name: str
    inputs: list[PortForm]
    outputs: list[str]

    @classmethod
    def of(cls, spec: ModelSpec) -> ModelForm:
        """The part of a model's specification that travels."""
        ports = [
            PortForm(port.name, port.dtype.name, port.dims, port.shape)
            for port in spec.inputs.values()
        ]
        return cls(spec.name, ports, list(spec.outputs))

    def spec(self) -> ModelSpec:
        """A specification that says as much."""
        inputs = {port.name: _tensor_spec(port) for port in self.inputs}
        outputs = {name: _tensor_spec(PortForm(name, "FP32", (), ())) for name in self.outputs}
        return ModelSpec(
            name=self.name,
            version=0,
            platform="",
            max_batch_size=0,
            inputs=inputs,
            outputs=outputs,
            required_inputs=frozenset(),
            batcher=None,
        )


def _tensor_spec(port: PortForm) -> TensorSpec:
    dtype = dtypes.BY_NAME[port.datatype]
    return TensorSpec(name=port.name, dtype=dtype, dims=port.dims, shape=port.shape)


class Job(msgspec.Struct, frozen=True):
    """A text to read; it follows."""

    kind: Kind
    text_bytes: int
    max_bytes: int  # that a tensor may have
    body_bytes: int = 0  # of the whole request, whose binary tensors are not sent along
    model: ModelForm | None = None


class TensorPlace(msgspec.Struct, frozen=True, array_like=True):
    """An input. Its bytes follow the result, or lie in the request behind its JSON."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int
    is_binary: bool


class ReadRequest(msgspec.Struct, frozen=True, tag="request"):
    """An inference request without its bytes."""

    tensors: list[TensorPlace]
    id: str
    outputs: tuple[str, ...] | None
    parameters: dict[str, ParameterValue]
    priority: int
    timeout_us: int
    correlation_id: int | str
    flags: int
    output_default: tuple[bool, int] = (False, 0)
    output_choices: dict[str, tuple[bool, int]] = {}

    @property
    def payload_sizes(self) -> list[int]:
        """What follows, in bytes."""
        return [tensor.size for tensor in self.tensors if not tensor.is_binary]


class ReadLoad(msgspec.Struct, frozen=True, tag="load"):
    """A load request without its files."""

    config: str | None
    file_sizes: dict[str, int]

    @property
    def payload_sizes(self) -> list[int]:
        """What follows, in bytes."""
        return list(self.file_sizes.values())


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The text is wrong; `code` is one of `pytriton.errors.ErrorCode`."""

    code: int
    message: str

    @property
    def payload_sizes(self) -> list[int]:
        """Nothing follows."""
        return []


Reply = ReadRequest | ReadLoad | Refused

encode = msgspec.msgpack.encode
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
