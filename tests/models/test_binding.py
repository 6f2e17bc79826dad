# SPDX-License-Identifier: Apache-2.0
"""Arguments of `bind` that are refused whatever is bound."""

from __future__ import annotations

import pytest

from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import Ray
from pytriton.models.binding import BindArguments, make_model


def add(a: int) -> int:
    return a + 1


@pytest.mark.parametrize("instances", [None, Ray()])
def test_what_is_no_configuration_is_refused(instances):
    given = BindArguments("m", add, config={"max_batch_size": 3}, instances=instances)
    with pytest.raises(PyTritonValidationError, match="config: expected a ModelConfig, got"):
        make_model(given)
