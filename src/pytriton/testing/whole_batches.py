# SPDX-License-Identifier: Apache-2.0
"""Calls `execute_batch` of a backend under test with requests, and splits what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.model_spec import ModelSpec
from pytriton.runtime.pb_utils.batch import Batch
from pytriton.runtime.pb_utils.failures import TritonError
from pytriton.runtime.pb_utils.request import InferenceRequest
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend.batch_execution import (
    checked_outputs,
    declared_outputs,
    parts_of,
)
from pytriton.runtime.python_backend.failure_text import RuleError


class BatchCaller:
    """Calls a backend's `execute_batch`.

    Args:
        model: the backend's object.
        spec: its model.
        config: the model's configuration as JSON.
        state_names: the states that the model has to return.
    """

    def __init__(
        self, model: Any, spec: ModelSpec, config: str, state_names: Sequence[str]
    ) -> None:
        self._model = model
        self._spec = spec
        self._is_batching = spec.max_batch_size > 0
        names = list(dict.fromkeys((*spec.outputs, *state_names)))
        self._declared = declared_outputs(config, names)

    def call(self, requests: Sequence[InferenceRequest]) -> list[InferenceResponse | None]:
        """Run requests as one batch and return the response to each.

        Raises:
            RuleError: they cannot be in one batch, or the backend returned something invalid.
            Exception: the exception that the backend raised.
        """
        batch = self._make_batch(requests)
        result = self._model.execute_batch(batch)
        declared = self._declared
        if not declared and isinstance(result, dict):  # nothing is configured, so all is allowed
            declared = dict.fromkeys(result)
            batch.output_names = list(result)
        outputs = checked_outputs(result, batch, declared, is_batching=self._is_batching)
        columns = {
            name: list(parts_of(output, batch.rows, is_batching=self._is_batching))
            for name, output in outputs.items()
        }
        return [self._response(batch, position, columns) for position in range(len(requests))]

    def _make_batch(self, requests: Sequence[InferenceRequest]) -> Batch:
        if len(requests) > 1 and not self._is_batching:
            raise RuleError(
                f"model '{self._spec.name}' has max_batch_size 0, so each request is a batch: send"
                " them one by one"
            )
        arrays = [{each.name(): each.as_numpy() for each in one.inputs()} for one in requests]
        if any(each.keys() != arrays[0].keys() for each in arrays):
            raise RuleError("a server does not batch requests with different inputs")
        shapes: dict[str, list[tuple[int, ...]]] = {}
        inputs = {
            name: self._joined(name, [each[name] for each in arrays], shapes) for name in arrays[0]
        }
        wanted = {name for each in requests for name in each.output_names}
        names = self._declared or sorted(wanted)
        return Batch(
            inputs,
            [_rows(each) if self._is_batching else 1 for each in arrays],
            [name for name in names if name in wanted],
            shapes=shapes,
            ids={at: each.request_id() for at, each in enumerate(requests) if each.request_id()},
            parameters=_parameters(requests),
        )

    def _joined(
        self, name: str, parts: list[NDArray[Any]], shapes: dict[str, list[tuple[int, ...]]]
    ) -> NDArray[Any]:
        if len(parts) == 1:
            return parts[0]
        if all(part.shape[1:] == parts[0].shape[1:] for part in parts):
            return np.concatenate(parts)
        if not self._spec.inputs[name].is_ragged:
            raise RuleError(
                f"a server does not batch requests whose input '{name}' has different shapes,"
                " unless its configuration has allow_ragged_batch"
            )
        shapes[name] = [part.shape for part in parts]
        return np.concatenate([part.ravel() for part in parts])

    def _response(
        self, batch: Batch, position: int, columns: dict[str, list[NDArray[Any]]]
    ) -> InferenceResponse:
        if position in batch.failures:
            return InferenceResponse([], TritonError(*batch.failures[position]))
        return InferenceResponse(
            [Tensor.from_array(name, parts[position]) for name, parts in columns.items()]
        )


def _rows(arrays: dict[str, NDArray[Any]]) -> int:
    return next((len(array) for array in arrays.values()), 1)


def _parameters(requests: Sequence[InferenceRequest]) -> dict[int, dict[str, Any]]:
    values = {at: each.parameter_values for at, each in enumerate(requests)}
    return {at: dict(each) for at, each in values.items() if each}
