# SPDX-License-Identifier: Apache-2.0
"""Checks the names of the outputs that a callable returned.

Outputs that were declared without a name take the values in order.
`pytriton.runtime.functions.output_validation` checks the values.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from pytriton.proxy.types import Request

logger = logging.getLogger(__name__)

Outputs = Mapping[str, NDArray[Any]]


class OutputNames:
    """The names of the outputs of a model. All instances of the model share this object.

    Args:
        model_name: name of the model, for messages.
        declared: names of all outputs, in order.
        unnamed: outputs that the user declared without a name.
        strict: whether names must always be the declared ones.
        decoupled: whether a response may omit outputs.
    """

    def __init__(
        self,
        model_name: str,
        declared: Sequence[str],
        unnamed: Collection[str] = (),
        *,
        strict: bool = False,
        decoupled: bool = False,
    ) -> None:
        self._model_name = model_name
        self._declared = list(declared)
        self._unnamed = frozenset(unnamed)
        self._strict = strict
        self._decoupled = decoupled
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    def assign(self, outputs: Outputs, wanted: Collection[str] | None = None) -> Outputs:
        """Assign declared names to outputs, and check that none is missing.

        Args:
            outputs: result of the callable, whose keys are not exactly the declared names.
            wanted: names that the client requested; None for all.

        Returns:
            The outputs, with declared names if these are known.

        Raises:
            ValueError: An output that the client requested is missing.
        """
        if isinstance(outputs, Request) and self._is_echo(outputs):
            return dict(zip(self._declared, outputs.values(), strict=True))
        missing = [name for name in self._declared if name not in outputs]
        undeclared = [name for name in outputs if name not in self._declared]
        if not all(isinstance(name, str) for name in undeclared) or (self._strict and undeclared):
            return outputs  # the check of the values refuses these names
        if undeclared and len(undeclared) == len(missing) and self._unnamed.issuperset(missing):
            return self._in_order(outputs, dict(zip(undeclared, missing, strict=True)))
        missing = [name for name in missing if wanted is None or name in wanted]
        if missing:
            self._refuse(outputs, missing, undeclared)
        return outputs

    def warn_once(self, topic: str, text: str, *arguments: object) -> None:
        """Log a warning once for each topic."""
        with self._lock:
            is_new = topic not in self._warned
            self._warned.add(topic)
        if is_new:
            logger.warning(text, *arguments)

    def _is_echo(self, request: Request) -> bool:
        """Whether a request was returned as result: its inputs are then the outputs, in order."""
        return len(request) == len(self._declared) and not any(
            name in request for name in self._declared
        )

    def _in_order(self, outputs: Outputs, names: Mapping[str, str]) -> Outputs:
        self.warn_once(
            "order",
            "Model `%s` declares outputs without names, so %s were taken in order for %s; "
            "name the tensors in `outputs` to get rid of this warning",
            self._model_name,
            list(names),
            list(names.values()),
        )
        return {names.get(name, name): array for name, array in outputs.items()}

    def _refuse(self, outputs: Outputs, missing: list[str], undeclared: list[str]) -> None:
        names_text = f"Returned: {list(outputs)}. Expected: {self._declared}."
        if self._decoupled and not undeclared:
            self.warn_once(
                "missing",
                "A response of model `%s` omits %s, without an error for its client. %s",
                self._model_name,
                missing,
                names_text,
            )
            return
        raise ValueError(
            f"Not all outputs of model `{self._model_name}` were returned: {missing} "
            f"{'is' if len(missing) == 1 else 'are'} missing. {names_text}"
        )
