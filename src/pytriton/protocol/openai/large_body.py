# SPDX-License-Identifier: Apache-2.0
"""Large requests of OpenAI's clients, which another process reads: what it is told, and tells.

Both ends are here: what one side encodes, the other decodes. The bytes of tensors are beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from pytriton.base.dtypes import BY_NUMBER
from pytriton.base.messages import InferRequest, InferTensor, ParameterValue, RequestFields
from pytriton.base.model_spec import ModelSpec
from pytriton.base.sent_specs import decode_spec, encode_spec
from pytriton.protocol.openai.embeddings import EmbeddingJob, read_embeddings
from pytriton.protocol.openai.errors import OpenAIError
from pytriton.protocol.openai.generation import Generation, read_generation
from pytriton.protocol.openai.members import DocumentMembers

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer

Work: TypeAlias = Generation | EmbeddingJob
EMBEDDINGS = "embeddings"


def read_work(members: DocumentMembers, spec: ModelSpec, route: str) -> Work:
    """Read a request of a route (chat, completions or embeddings), whose model's name was taken.

    Raises:
        OpenAIError: It is malformed, or asks for something that this model cannot do.
    """
    if route == EMBEDDINGS:
        return read_embeddings(members, spec)
    return read_generation(members, spec, is_chat=route == "chat")


class _Task(msgspec.Struct, array_like=True):
    """What to read: the body names one of these models."""

    route: str
    specs: dict[str, bytes]


class _Problem(msgspec.Struct, array_like=True):
    """An `OpenAIError`."""

    status: int
    message: str
    param: str | None
    code: str | None
    kind: str


class _Tensor(msgspec.Struct, array_like=True):
    """An input, whose bytes are the part of the payload with the same index."""

    name: str
    datatype: int
    shape: tuple[int, ...]


class _Reply(msgspec.Struct):
    """What was read. Requests for the model have most tensors in common, and all parameters."""

    model: str = ""
    problem: _Problem | None = None
    name: str = ""  # of the model in requests to it
    tensors: list[_Tensor] = []
    requests: list[list[int]] = []  # their tensors
    parameters: dict[str, ParameterValue] = {}
    generation: Generation | None = None
    embeddings: EmbeddingJob | None = None


_decode_task = msgspec.msgpack.Decoder(_Task).decode
_decode_reply = msgspec.msgpack.Decoder(_Reply).decode
_encode = msgspec.msgpack.encode


def encode_task(route: str, specs: Mapping[str, ModelSpec]) -> bytes:
    """Encode what the other process has to know: the models that the request may be for."""
    return _encode(_Task(route, {name: encode_spec(spec) for name, spec in specs.items()}))


def read_large(task: bytes, body: bytes) -> tuple[bytes, Sequence[Buffer]]:
    """Read a body in the other process; returns the reply, and the tensors beside it."""
    told, reply = _decode_task(task), _Reply()
    parts: Sequence[Buffer] = ()
    try:
        members = DocumentMembers(body)
        reply.model = members.text("model")
        spec = told.specs.get(reply.model)
        if spec is not None:
            parts = _fill(reply, read_work(members, decode_spec(spec), told.route))
    except OpenAIError as error:
        reply.problem = _Problem(error.status, error.message, error.param, error.code, error.kind)
    return _encode(reply), parts


def _fill(reply: _Reply, work: Work) -> Sequence[Buffer]:
    """Put what was read into a reply; returns its tensors, each of them once."""
    requests, work.requests = work.requests, []
    if isinstance(work, Generation):
        work.prefixes = work.prefixes[:: work.choices_per_prompt]
        reply.generation = work
    else:
        reply.embeddings = work
    reply.name = requests[0].model_name
    reply.parameters = requests[0].fields.parameters
    tensors: dict[int, tuple[int, InferTensor]] = {}
    for request in requests:
        for each in request.inputs.values():
            tensors.setdefault(id(each), (len(tensors), each))
        reply.requests.append([tensors[id(each)][0] for each in request.inputs.values()])
    unique = [each for _, each in tensors.values()]
    reply.tensors = [_Tensor(each.name, each.dtype.number, each.shape) for each in unique]
    return [each.data for each in unique]


class LargeRequest(NamedTuple):
    """What another process found in a body."""

    model: str
    problem: OpenAIError | None
    work: Work | None  # None: the request is wrong, or for a model that the process was not told


def decode_large(document: bytes, parts: Sequence[Buffer]) -> LargeRequest:
    """Decode a reply; `parts` are the tensors beside it."""
    reply = _decode_reply(document)
    work = reply.generation or reply.embeddings
    if reply.problem is not None:
        status, message, param, code, kind = msgspec.structs.astuple(reply.problem)
        problem = OpenAIError(status, message, param=param, code=code, kind=kind)
        return LargeRequest(reply.model, problem, None)
    if work is None:
        return LargeRequest(reply.model, None, None)
    tensors = [
        InferTensor(each.name, BY_NUMBER[each.datatype], each.shape, part)
        for each, part in zip(reply.tensors, parts, strict=True)
    ]
    for indices in reply.requests:
        inputs = {tensors[index].name: tensors[index] for index in indices}
        fields = RequestFields("", dict(reply.parameters))
        work.requests.append(InferRequest(reply.name, inputs, fields=fields))
    if isinstance(work, Generation):
        count = work.choices_per_prompt
        work.prefixes = [prefix for prefix in work.prefixes for _ in range(count)]
    return LargeRequest(reply.model, None, work)
