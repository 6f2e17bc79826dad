# SPDX-License-Identifier: Apache-2.0
"""The tensors that a backend computes for ragged batches: `batch_input` and `batch_output`.

It knows no framework. The names and kinds are checked by the server before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.dtypes import BY_CONFIG_NAME
from pytriton.base.errors import InternalError

Shape = tuple[int, ...]
Arrays = dict[str, NDArray[Any]]


class BatchTensors:
    """Makes the inputs of a batch as a model expects them, and cuts its computed outputs.

    Args:
        config: The model's configuration, as `initialize` gets it.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._ragged = [
            entry["name"] for entry in config.get("input", ()) if entry.get("allow_ragged_batch")
        ]
        self._inputs = [_BatchInput(entry) for entry in config.get("batch_input", ())]
        self._sources = {
            name: entry["source_input"][0]
            for entry in config.get("batch_output", ())
            for name in entry["target_name"]
        }
        self.has_inputs = bool(self._ragged or self._inputs)
        self.has_outputs = bool(self._sources)

    def prepare(
        self, inputs: Arrays, rows: Sequence[int], shapes: Mapping[str, Sequence[Shape]]
    ) -> Arrays:
        """Returns the inputs with computed ones; ragged ones are flat.

        Args:
            inputs: The inputs by name, each with all rows of the batch.
            rows: The number of rows of each request.
            shapes: The shape of each request's part, of inputs whose shapes differ.
        """
        prepared = dict(inputs)
        for each in self._inputs:
            source = inputs[each.source]
            prepared.update(each.compute(_request_shapes(each.source, source, rows, shapes)))
        for name in self._ragged:
            if name in prepared:
                prepared[name] = prepared[name].reshape(-1)
        return prepared

    def scatter(
        self,
        outputs: Mapping[str, NDArray[Any]],
        inputs: Arrays,
        rows: Sequence[int],
        shapes: Mapping[str, Sequence[Shape]],
    ) -> dict[str, Any]:
        """Returns the outputs; those of `batch_output` are lists with an array for each request.

        Raises:
            InternalError: An output has another number of elements than its source.
        """
        scattered: dict[str, Any] = dict(outputs)
        for name, source in self._sources.items():
            if name in scattered:
                wanted = _request_shapes(source, inputs[source], rows, shapes)
                scattered[name] = _cut(name, scattered[name], wanted)
        return scattered


class _BatchInput:
    """One entry of `batch_input`."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.source: str = entry["source_input"][0]
        self._targets: list[str] = entry["target_name"]
        self._make = _KINDS[entry["kind"]]
        self._numpy = BY_CONFIG_NAME[entry["data_type"]].numpy

    def compute(self, shapes: Sequence[Shape]) -> Arrays:
        """Returns the computed inputs, from the shapes of the source in each request."""
        array = self._make(shapes).astype(self._numpy)
        return dict.fromkeys(self._targets, array)


def _counts(shapes: Sequence[Shape]) -> NDArray[Any]:
    return np.array([prod(shape) for shape in shapes])


def _accumulated(shapes: Sequence[Shape]) -> NDArray[Any]:
    return np.cumsum(_counts(shapes))


def _accumulated_with_zero(shapes: Sequence[Shape]) -> NDArray[Any]:
    return np.concatenate([[0], _accumulated(shapes)])


def _max_count_as_shape(shapes: Sequence[Shape]) -> NDArray[Any]:
    """Only the shape means something, so the elements are zeros."""
    return np.zeros(max(_counts(shapes), default=0))


def _item_shapes(shapes: Sequence[Shape]) -> NDArray[Any]:
    """Returns a row for each row of the batch: its shape."""
    return np.array([shape[1:] for shape in shapes for _ in range(shape[0])])


def _flat_item_shapes(shapes: Sequence[Shape]) -> NDArray[Any]:
    return _item_shapes(shapes).reshape(-1)


_KINDS: dict[str, Callable[[Sequence[Shape]], NDArray[Any]]] = {
    "BATCH_ELEMENT_COUNT": _counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": _accumulated,
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": _accumulated_with_zero,
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": _max_count_as_shape,
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": _flat_item_shapes,
}


def _request_shapes(
    name: str,
    array: NDArray[Any],
    rows: Sequence[int],
    shapes: Mapping[str, Sequence[Shape]],
) -> Sequence[Shape]:
    """Returns the shape of an input in each request."""
    if name in shapes:
        return shapes[name]
    if len(rows) == 1:
        return [array.shape]
    return [(count, *array.shape[1:]) for count in rows]


def _cut(name: str, output: NDArray[Any], shapes: Sequence[Shape]) -> list[NDArray[Any]]:
    sizes = [prod(shape) for shape in shapes]
    if output.size != sum(sizes):
        raise InternalError(
            f"expected {sum(sizes)} elements in batch output '{name}', as many as its source input "
            f"has, got {output.size}"
        )
    flat = output.reshape(-1)
    parts = []
    at = 0
    for size, shape in zip(sizes, shapes, strict=True):
        parts.append(flat[at : at + size].reshape(shape))
        at += size
    return parts
