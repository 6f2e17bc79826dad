# SPDX-License-Identifier: Apache-2.0
"""What the real server does not survive, or never answers. Only ours is asked."""

from __future__ import annotations

DEADLY_CASES = frozenset(
    {
        "tensor from DLPack arrays",  # the model's process dies
        "load failing_without_file",  # the load never ends, and the server does not stop any more
        "iterative not configured",  # no response is ever sent
    }
)
# Names of facts, by group. What a model does wrong with metrics and versions ends the real server
# only now and then; where it did not, the answer was the same.
DEADLY_FACTS: dict[str, tuple[str, ...]] = {
    "request defaults": ("cancellation of a made request", "release flags of a made request"),
    "tensor from DLPack": ("capsule that was taken",),  # it reads memory that was freed
    "metric counters": ("increment by less", "set", "observe"),
    "metric gauges": ("observe",),
    "metric histograms": ("increment", "set", "value", "buckets unsorted", "buckets twice"),
    "control readiness": ("negative version", "bad version"),
    "control loading": (
        "load files without configuration",
        "load nothing",
        "load a model that fails",
    ),
}
