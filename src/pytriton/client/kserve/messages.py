# SPDX-License-Identifier: Apache-2.0
"""Messages of inference over gRPC; apart from the client, because grpc takes 0.1 s to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from pytriton.base.protos import service_pb2
from pytriton.client.kserve.records import (
    ModelAnswer,
    ModelQuery,
    Parameter,
    PlainTensor,
    tensor_of_elements,
)
from pytriton.protocol.kserve_pb import set_parameter

SERVICE = "/inference.GRPCInferenceService"
FINAL = "triton_final_response"  # parameter of the last response of a request
ASKS_FOR_FINAL = "triton_enable_empty_final_response"


def infer_message(
    model: str,
    version: str,
    parameters: Mapping[str, Parameter],
    inputs: Sequence[PlainTensor],
    outputs: Sequence[str],
) -> Any:
    """Returns a ModelInferRequest with its tensors in binary."""
    request = service_pb2.ModelInferRequest(model_name=model, model_version=version)
    for name, value in parameters.items():
        set_parameter(request.parameters[name], value)
    for tensor in inputs:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.data)
    for name in outputs:
        request.outputs.add(name=name)
    return request


def outputs_of_message(response: Any) -> list[PlainTensor]:
    """Returns the outputs of a ModelInferResponse."""
    raw = response.raw_output_contents
    if len(raw) == len(response.outputs):
        return [
            PlainTensor(output.name, output.datatype, tuple(output.shape), data)
            for output, data in zip(response.outputs, raw, strict=True)
        ]
    # A server may send typed values instead; one field has them.
    return [
        tensor_of_elements(
            output.name,
            output.datatype,
            output.shape,
            next((values for _, values in output.contents.ListFields()), ()),
        )
        for output in response.outputs
    ]


def request_of(question: ModelQuery) -> Any:
    """Returns the message of a request for inference."""
    tensors = [PlainTensor.of(each) for each in question.inputs]
    request = infer_message(
        question.model, question.version, question.parameters, tensors, question.outputs
    )
    request.id = question.request_id
    return request


def answer_of(response: Any) -> ModelAnswer:
    """Returns what a message with an answer says."""
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in response.parameters.items()
        if value.WhichOneof("parameter_choice") and name != FINAL
    }
    outputs = tuple(tensor.named() for tensor in outputs_of_message(response))
    return ModelAnswer(
        response.model_name, response.model_version, response.id, parameters, outputs
    )


def document_of(message: Message) -> dict[str, Any]:
    """Returns the fields of a message that are set, as a server's JSON has them."""
    document: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            document[field.name] = {key: _plain(field, value[key]) for key in value}
        elif isinstance(value, str | bytes) or not hasattr(value, "__len__"):
            document[field.name] = _plain(field, value)
        else:
            document[field.name] = [_plain(field, each) for each in value]
    return document


def _plain(field: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return document_of(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
