# SPDX-License-Identifier: Apache-2.0
"""Converts the shapes of tensors between those of clients and those of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytriton.base.model_spec import Reshape
    from pytriton.runtime.transport.refs import TensorRef

Shape = tuple[int, ...]


def reshape_inputs(
    refs: Iterable[TensorRef], reshapes: Mapping[str, Reshape], *, batching: bool
) -> None:
    """Give the inputs of a batch, which are valid, the shapes that the model expects."""
    for ref in refs:
        reshape = reshapes.get(ref.name)
        if reshape is None:
            continue
        if ref.shapes:
            ref.shapes = [_converted(reshape, shape, batching=batching) for shape in ref.shapes]
        else:
            ref.shape = _converted(reshape, ref.shape, batching=batching)


def _converted(reshape: Reshape, shape: Shape, *, batching: bool) -> Shape:
    converted = reshape.convert(shape, batching=batching)
    assert converted is not None, f"expected a shape like {reshape.source}, got {shape}"
    return converted


def reshape_outputs(
    refs: Iterable[TensorRef], reshapes: Mapping[str, Reshape], *, batching: bool
) -> InternalError | None:
    """Give outputs the shapes that clients expect; returns an error if one has another size."""
    for ref in refs:
        reshape = reshapes.get(ref.name)
        if reshape is None:
            continue
        shape = reshape.convert(ref.shape, batching=batching)
        if shape is None:
            return InternalError(
                f"output tensor shape does not match size of output for '{ref.name}'"
            )
        ref.shape = shape
    return None
