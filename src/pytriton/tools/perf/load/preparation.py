# SPDX-License-Identifier: Apache-2.0
"""Makes the recipe of a plan: checks it, and encodes its requests."""

from __future__ import annotations

from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.address import Address
from pytriton.tools.perf.load.grpc_requests import grpc_header_block, grpc_template
from pytriton.tools.perf.load.http_requests import has_binary, http_head, http_template
from pytriton.tools.perf.load.plan import (
    Compression,
    InputSet,
    LoadPlan,
    LoadProtocol,
    TensorMemory,
)
from pytriton.tools.perf.load.recipe import Recipe
from pytriton.tools.perf.load.tensors import PlainTensor, plain_tensor


def check_plan(plan: LoadPlan) -> None:
    """Refuse what cannot be done.

    Raises:
        LoadError: it says what was expected.
    """
    problem = ""
    if not plan.inputs or not all(plan.inputs):
        problem = "expected at least one input set in each stream of input data, got none"
    elif plan.decoupled and not plan.streaming:
        problem = "a decoupled model needs streaming"
    elif plan.shared_memory is not TensorMemory.NONE and _is_http_stream(plan):
        problem = "streams over HTTP have their tensors in JSON; shared memory needs gRPC"
    sequences = plan.sequences
    if sequences is not None and not problem:
        if sequences.at_once < 1 or (sequences.length is not None and sequences.length < 1):
            problem = "expected sequences of 1 request or more, and at least one at once"
        elif sequences.first_id < 1 or (sequences.last_id or sequences.first_id) < 1:
            problem = "expected ids of sequences of 1 or more"
        elif sequences.last_id is not None and sequences.last_id < sequences.first_id:
            problem = (
                f"expected ids of sequences from {sequences.first_id} to a larger one, "
                f"got {sequences.last_id}"
            )
    if problem:
        raise GeneratorError(problem)


def _is_http_stream(plan: LoadPlan) -> bool:
    return plan.protocol is LoadProtocol.HTTP and plan.streaming


def recipe_of(plan: LoadPlan, address: Address, regions: list[dict[str, str]]) -> Recipe:
    """The recipe of a plan.

    Args:
        plan: What is sent where; it has been checked.
        address: The server.
        regions: The regions of shared memory of each input set; empty without shared memory.

    Raises:
        LoadError: a tensor or a header cannot be sent.
    """
    is_grpc = plan.protocol is LoadProtocol.GRPC
    make = grpc_template if is_grpc else http_template
    streams = []
    number = 0
    for stream in plan.inputs:
        templates = []
        for inputs in stream:
            templates.append(make(plan, inputs, regions[number] if regions else {}))
            number += 1
        streams.append(templates)
    if is_grpc:
        head = grpc_header_block(plan, address.authority, is_tls=address.tls is not None)
    else:
        head = http_head(plan, address.authority)
    return Recipe(
        is_grpc=is_grpc,
        host=address.host,
        port=address.port,
        head=head,
        streams=streams,
        is_streaming=plan.streaming,
        is_decoupled=plan.decoupled,
        has_binary=not is_grpc and has_binary(plan),
        encoding="" if plan.compression is Compression.NONE else plan.compression.value,
        expected=[_expected(inputs) for stream in plan.inputs for inputs in stream],
        sequences=plan.sequences,
        tls=address.tls,
        keeps_outputs=plan.keep_outputs,
    )


def _expected(inputs: InputSet) -> list[PlainTensor] | None:
    if inputs.expected is None:
        return None
    return [plain_tensor(name, array) for name, array in inputs.expected.items()]
