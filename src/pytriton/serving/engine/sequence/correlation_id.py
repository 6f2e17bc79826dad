# SPDX-License-Identifier: Apache-2.0
"""Checks the id of a sequence against the type of the control input that gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.dtypes import BYTES, UINT64
from pytriton.base.errors import InvalidArgumentError
from pytriton.base.model_spec import ControlKind

if TYPE_CHECKING:
    from pytriton.base.messages import InferRequest
    from pytriton.base.model_spec import ModelSpec, SequenceSpec


def check_correlation_id(request: InferRequest, model_name: str, sequence: SequenceSpec) -> None:
    """Check that a text is for a text input, and a number for one of numbers.

    Triton 2.51 lets the model read foreign memory if they differ.

    Raises:
        InvalidArgumentError: They differ.
    """
    correlation_id = request.correlation_id
    if not correlation_id:  # the scheduler refuses that, or generates one
        return
    is_text = isinstance(correlation_id, str)
    for control in sequence.controls:
        if control.kind is ControlKind.CORRID and is_text is not (control.dtype is BYTES):
            given = BYTES if is_text else UINT64
            raise InvalidArgumentError(
                f"[request id: {request.id or '<id_unknown>'}] sequence batching control "
                f"'{control.name}' data-type is '{given.name}', but model "
                f"'{model_name}' expects '{control.dtype.name}'"
            )


def accepted_types(spec: ModelSpec) -> tuple[type[int | str], ...]:
    """Returns the types of the ids that `check_correlation_id` accepts."""
    controls = spec.sequence.controls if spec.sequence is not None else ()
    dtypes = [control.dtype for control in controls if control.kind is ControlKind.CORRID]
    if not dtypes:
        return (int, str)
    return (str,) if dtypes[0] is BYTES else (int,)
