# SPDX-License-Identifier: Apache-2.0
"""What the instances of a model need to know of it, to make its requests and its responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytriton.base.model_spec import Reshape


class ModelLabels:
    """The name and version for all responses of a model, and the order of its inputs.

    Args:
        name: The name of the model.
        version: The version of the model.
        input_names: The inputs in the order in which they are sent to instances.
        batching: Whether inputs have a batch dimension, along which requests are concatenated.
        is_model_file: Whether the model is a model.py. It gets more details of a request than a
            callable.
        state_outputs: The outputs with the states of sequences, which are always returned.
        input_reshapes: For inputs that the model gets in another shape than clients send.
        output_reshapes: The same for outputs.
        ragged_inputs: The inputs whose shapes may differ in a batch.
        in_sequences: Whether requests belong to sequences; then members of chunks may have ids.
        keeps_inputs: Whether requests may be executed again, so that no instance may change their
            inputs.
    """

    __slots__ = (
        "batching", "in_sequences", "input_names", "input_reshapes", "is_model_file",
        "keeps_inputs", "name", "output_reshapes", "ragged_inputs", "state_outputs", "version",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        version: str,
        input_names: Sequence[str],
        *,
        batching: bool,
        is_model_file: bool = False,
        state_outputs: Sequence[str] = (),
        input_reshapes: Mapping[str, Reshape] | None = None,
        output_reshapes: Mapping[str, Reshape] | None = None,
        ragged_inputs: Collection[str] = (),
        in_sequences: bool = False,
        keeps_inputs: bool = False,
    ) -> None:
        self.name = name
        self.version = version
        self.input_names = tuple(input_names)
        self.batching = batching
        self.is_model_file = is_model_file
        self.state_outputs = tuple(state_outputs)
        self.input_reshapes = input_reshapes
        self.output_reshapes = output_reshapes
        self.ragged_inputs = ragged_inputs
        self.in_sequences = in_sequences
        self.keeps_inputs = keeps_inputs

    def returned_outputs(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the outputs that an instance returns to a request whose client wants these."""
        if not self.state_outputs:
            return wanted
        return tuple(dict.fromkeys((*wanted, *self.state_outputs)))
