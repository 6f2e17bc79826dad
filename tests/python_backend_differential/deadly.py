# SPDX-License-Identifier: Apache-2.0
"""What the real server does not survive, or never answers. Only ours is asked."""

from __future__ import annotations

DEADLY_CASES = frozenset(
    {
        "tensor from DLPack arrays",  # the model's process dies
        "load failing_without_file",  # the load never ends, and the server does not stop any more
        "iterative not configured",  # no response is ever sent
        # Execute raises after a last response: its heap is damaged, and it dies or hangs later.
        "batch with a sent one and an exception",
        "sender last > raise >",
    }
)
# Names of facts, by group. What a model does wrong with metrics and versions ends the real server
# only now and then; where it did not, the answer was the same.
DEADLY_FACTS: dict[str, tuple[str, ...]] = {
    "request defaults": ("cancellation of a made request", "release flags of a made request"),
    "tensor from DLPack": ("capsule that was taken",),  # it reads memory that was freed
    "metric families": ("same of another kind", "name with a space", "empty name"),
    "metric deletion": ("family of a name that was deleted",),
    "metric counters": (
        "increment by less",
        "set",
        "observe",
        "labels of numbers",
        "labels with a number for a key",
    ),
    "metric gauges": ("observe",),
    "metric histograms": ("increment", "set", "value", "buckets unsorted", "buckets twice"),
    "control readiness": ("negative version", "bad version"),
    "control loading": (
        "load files without configuration",
        "load nothing",
        "load a model that fails",
    ),
}


def is_asked(name: str) -> bool:
    """Whether the real server is asked for an observation; others it has survived once, or not."""
    case, _, fact = name.partition(": ")
    return case not in DEADLY_CASES and fact not in DEADLY_FACTS.get(case, ())
