# SPDX-License-Identifier: Apache-2.0
"""Decides whether a request may start a sequence, and under which id."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.base.model_spec import ControlKind

if TYPE_CHECKING:
    from collections.abc import Container

    from pytriton.base.messages import InferRequest
    from pytriton.base.model_spec import SequenceSpec

_START = 1


class SequenceOpening:
    """The rules for a request of a sequence that is not known, with Triton's words."""

    def __init__(self, model_name: str, spec: SequenceSpec) -> None:
        self._model_name = model_name
        self._max_queue_size = spec.max_queue_size
        self._generates_ids = spec.generates_ids
        self._ids = itertools.count(1)
        self._has_text_ids = any(
            control.kind is ControlKind.CORRID and control.dtype is dtypes.BYTES
            for control in spec.controls
        )

    def admit(self, request: InferRequest, known: Container[int | str]) -> bool:
        """Check that a request may start a sequence; returns whether it got an id that is new.

        Args:
            request: The request.
            known: The ids of the sequences that are open.

        Raises:
            InvalidArgumentError: It has no id, or does not say that it starts a sequence.
        """
        if request.correlation_id:
            if not request.flags & _START:
                raise InvalidArgumentError(
                    f"inference request for sequence {request.correlation_id} to model "
                    f"'{self._model_name}' must specify the START flag on the first request of "
                    "the sequence"
                )
            return False
        if not self._generates_ids:
            raise InvalidArgumentError(
                f"inference request to model '{self._model_name}' must specify a non-zero or "
                "non-empty correlation ID"
            )
        candidates = map(str, self._ids) if self._has_text_ids else self._ids
        request.correlation_id = next(each for each in candidates if each not in known)
        request.flags |= _START
        return True

    def check_backlog(self, request: InferRequest, size: int) -> None:
        """Check that one more sequence may wait for a slot.

        Raises:
            UnavailableError: There are enough already.
        """
        if 0 < self._max_queue_size <= size:
            request_id = request.id or "<id_unknown>"
            raise UnavailableError(f"[request id: {request_id}] Exceeds maximum queue size")
