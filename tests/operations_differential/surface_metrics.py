# SPDX-License-Identifier: Apache-2.0
"""Every family of metrics: names, labels, helps and values."""

from __future__ import annotations

from tests.operations_differential.cases_metrics_counts import COUNT_CASES
from tests.operations_differential.cases_metrics_options import OPTION_CASES
from tests.operations_differential.metrics_models import write_observed
from tests.operations_differential.surface import Setup, Surface

SURFACE = Surface(
    "metrics",
    cases=(*COUNT_CASES, *OPTION_CASES),
    setup=Setup(models=write_observed, options=("--model-control-mode=explicit", "--load-model=*")),
)
