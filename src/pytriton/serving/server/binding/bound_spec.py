# SPDX-License-Identifier: Apache-2.0
"""What the server makes of a `Bind` message: the checked configuration, and what instances need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pytriton.runtime.executor.inference import ModelLabels
from pytriton.serving.engine.config import (
    config_from_dict,
    config_to_json,
    normalise_config,
    spec_from_config,
)
from pytriton.serving.engine.config_rules import validate_config
from pytriton.serving.engine.rate_limiter import InstanceLimits
from pytriton.serving.engine.sequence.sequence_inputs import added_input_names, state_output_names

if TYPE_CHECKING:
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.transport.control import Bind


class BoundSpec(NamedTuple):
    """A bound model as the engine knows it."""

    config: Any  # the ModelConfig message, normalised
    spec: ModelSpec

    @classmethod
    def read(cls, message: Bind) -> BoundSpec:
        """Read and check a message.

        Raises:
            ServerError: The configuration is wrong.
        """
        config = normalise_config(config_from_dict(message.config))
        validate_config(config)
        spec = spec_from_config(config, message.version, initial_states=message.initial_states)
        return cls(config, msgspec.structs.replace(spec, takes_parameters=message.takes_parameters))

    @property
    def config_json(self) -> bytes:
        """The configuration as clients read it."""
        return config_to_json(self.config)

    @property
    def limits(self) -> InstanceLimits:
        """What the rate limiter knows of each instance."""
        return InstanceLimits.read(self.config.instance_group[0].rate_limiter)

    def labels(self) -> ModelLabels:
        """Returns what instances need to know of the model."""
        spec = self.spec
        return ModelLabels(
            spec.name,
            str(spec.version),
            [*spec.inputs, *added_input_names(spec)],
            batching=spec.max_batch_size > 0,
            state_outputs=state_output_names(spec),
            in_sequences=spec.sequence is not None,
            keeps_inputs=spec.is_idempotent,
        )
