# SPDX-License-Identifier: Apache-2.0
"""What a model's configuration says about its metrics: labels, and the buckets of histograms."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

from pytriton.base.errors import InvalidArgumentError

# Names that begin with two underscores are reserved, and the server adds the first one.
_is_tag_name = re.compile(r"(?!_)[a-zA-Z0-9_]*").fullmatch


def check_metrics(config: Any) -> None:
    """Check `metric_tags` and `model_metrics`; raises InvalidArgumentError for a wrong value."""
    for tag in config.metric_tags:
        if not _is_tag_name(tag):
            raise InvalidArgumentError(
                f"metric tag '{tag}' must have only letters, digits and underscores, and must not "
                f"begin with an underscore for {config.name}"
            )
    for control in config.model_metrics.metric_control:
        if not control.HasField("metric_identifier"):
            raise InvalidArgumentError("metric control must specify 'metric_identifier'")
        if not control.metric_identifier.family:
            raise InvalidArgumentError("metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            raise InvalidArgumentError("metric control must specify 'histogram_options'")
        buckets = control.histogram_options.buckets
        if not buckets:
            raise InvalidArgumentError("histogram options must specify non-empty 'buckets'")
        if not are_bounds(buckets):
            raise InvalidArgumentError(
                f"the buckets of '{control.metric_identifier.family}' must be finite numbers in "
                f"ascending order for {config.name}"
            )


def histogram_buckets(config: Any) -> dict[str, tuple[float, ...]]:
    """Returns the bounds that a configuration sets, by metric family; the last one wins."""
    return {
        control.metric_identifier.family: tuple(control.histogram_options.buckets)
        for control in config.model_metrics.metric_control
    }


def are_bounds(bounds: Any) -> bool:
    """Returns whether numbers can be the bounds of a histogram."""
    rises = all(low < high for low, high in pairwise(bounds))
    return rises and all(map(math.isfinite, bounds))
