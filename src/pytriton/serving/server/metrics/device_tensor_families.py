# SPDX-License-Identifier: Apache-2.0
"""How tensors in GPU memory went from model to model: shared, or through the host and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.runtime.executor.device_blocks import SHARED, tally
from pytriton.serving.server.metrics.exposition import MetricSample, SampleFamily

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAME = "nv_inference_gpu_tensors_total"
_HELP = (
    "Tensors in GPU memory between models, by the model that got a shared one or sent a copied one,"
    " and the reason for a copy through the host"
)


def device_tensor_families(
    counts: Mapping[tuple[str, str, str], int] = tally,
) -> Iterator[SampleFamily]:
    """Yields a family that has no values before models have exchanged such tensors."""
    samples = [
        MetricSample(
            count,
            {
                "model": model,
                "version": version,
                "way": "shared" if reason == SHARED else "copied",
                "reason": reason,
            },
        )
        for (model, version, reason), count in sorted(counts.items())
    ]
    yield SampleFamily(NAME, "counter", _HELP, samples)
