# SPDX-License-Identifier: Apache-2.0
"""Whether a callable returned the outputs that its model declares, going by their names.

Outputs that were declared without a name take the values in order. Whether the values themselves
can be sent is decided in `pytriton.backend.output_validation`.
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
    """The names of one model's outputs. All instances of the model share it.

    Args:
        model_name: name of the model, for texts.
        declared: names of all outputs, in order.
        unnamed: those of them that the user did not name.
        strict: whether names have to be the declared ones in any case.
        decoupled: whether a response may leave outputs out, as one of many responses may.
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
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def assign(self, outputs: Outputs, wanted: Collection[str] | None = None) -> Outputs:
        """Give outputs their declared names, and see that none is missing.

        Args:
            outputs: what the callable returned; its keys are not exactly the declared names.
            wanted: names that the client asked for; None for all.

        Returns:
            The outputs, under declared names where these are known.

        Raises:
            ValueError: where an output that the client asked for is missing.
        """
        if isinstance(outputs, Request) and self._is_echo(outputs):
            return dict(zip(self._declared, outputs.values(), strict=True))
        missing = [name for name in self._declared if name not in outputs]
        undeclared = [name for name in outputs if name not in self._declared]
        if not all(isinstance(name, str) for name in undeclared) or (self._strict and undeclared):
            return outputs  # whoever checks the values refuses these names
        if undeclared and len(undeclared) == len(missing) and self._unnamed.issuperset(missing):
            return self._in_order(outputs, dict(zip(undeclared, missing, strict=True)))
        missing = [name for name in missing if wanted is None or name in wanted]
        if missing:
            self._refuse(outputs, missing, undeclared)
        return outputs

    def tell_once(self, about: str, text: str, *arguments: object) -> None:
        """Log a warning unless one about the same was logged before."""
        with self._lock:
            is_new = about not in self._told
            self._told.add(about)
        if is_new:
            logger.warning(text, *arguments)

    def _is_echo(self, request: Request) -> bool:
        """Whether a request came back as it was: its inputs stand for the outputs in order."""
        return len(request) == len(self._declared) and not any(
            name in request for name in self._declared
        )

    def _in_order(self, outputs: Outputs, names: Mapping[str, str]) -> Outputs:
        self.tell_once(
            "order",
            "Model `%s` declares outputs without names, so %s were taken in order for %s; "
            "name the tensors in `outputs` to get rid of this warning",
            self._model_name,
            list(names),
            list(names.values()),
        )
        return {names.get(name, name): array for name, array in outputs.items()}

    def _refuse(self, outputs: Outputs, missing: list[str], undeclared: list[str]) -> None:
        came = f"Returned: {list(outputs)}. Expected: {self._declared}."
        if self._decoupled and not undeclared:
            self.tell_once(
                "missing",
                "A response of model `%s` leaves out %s, which its client is not told. %s",
                self._model_name,
                missing,
                came,
            )
            return
        raise ValueError(
            f"Not all outputs of model `{self._model_name}` were returned: {missing} "
            f"{'is' if len(missing) == 1 else 'are'} missing. {came}"
        )
