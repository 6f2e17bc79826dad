# SPDX-License-Identifier: Apache-2.0
"""The metrics of a policy: what it refused, and whether its files can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytriton.serving.server.metrics.exposition import MetricSample, SampleFamily, gauge


def families(
    refusals: Mapping[str, int], reload_failures: int, *, is_broken: bool
) -> Iterator[SampleFamily]:
    """Yields the families of a policy; refusals are by reason, of which there are few."""
    yield SampleFamily(
        "nv_access_refusal_count",
        "counter",
        "Number of requests that were refused by the policy, by reason",
        [MetricSample(count, {"reason": reason}) for reason, count in sorted(refusals.items())],
    )
    yield SampleFamily(
        "nv_access_policy_failure_count",
        "counter",
        "Number of changes of the policy that could not be read",
        [MetricSample(reload_failures, {})],
    )
    yield gauge(
        "nv_access_policy_outdated",
        "Whether the files of the policy cannot be read, so that the former one is in force",
        int(is_broken),
    )
