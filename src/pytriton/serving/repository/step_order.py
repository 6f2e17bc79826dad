# SPDX-License-Identifier: Apache-2.0
"""The order of loads and unloads that follows from the steps of ensembles. Pure functions.

Steps are given as the models of each ensemble's steps, by the ensemble's name. Ensembles may be
steps of others, and may form cycles, which are refused elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

Steps = Mapping[str, Collection[str]]


def dependents(names: Iterable[str], steps: Steps) -> set[str]:
    """Returns the ensembles that depend on some of these models, directly or through others."""
    users: dict[str, list[str]] = {}
    for ensemble, models in steps.items():
        for model in models:
            users.setdefault(model, []).append(ensemble)
    return _reached(names, users)


def waits(names: Iterable[str], steps: Steps) -> dict[str, list[str]]:
    """Returns for each of these models those among them that have to be loaded before it.

    Models of a cycle do not wait for each other, so that all of them get to the check of cycles.
    """
    members = dict.fromkeys(names)
    reached = {name: _reached([name], steps) for name in members if name in steps}
    return {
        name: [
            step
            for step in dict.fromkeys(steps.get(name, ()))
            if step in members and step != name and name not in reached.get(step, ())
        ]
        for name in members
    }


def bottom_up(names: Iterable[str], steps: Steps) -> list[str]:
    """Returns these models in an order in which every ensemble comes after its steps."""
    pending = waits(sorted(names), steps)
    ordered: list[str] = []

    def add(name: str) -> None:
        for step in pending.pop(name, ()):
            if step in pending:
                add(step)
        ordered.append(name)

    for name in list(pending):
        if name in pending:
            add(name)
    return ordered


def superfluous(name: str, steps: Steps, kept: Collection[str]) -> set[str]:
    """Returns the models of an ensemble's steps that nobody needs without this ensemble.

    Args:
        name: The ensemble that is unloaded.
        steps: The steps of all ensembles that should serve, this one included.
        kept: The models that are needed in any case: clients have loaded them.
    """
    gone = {name}
    candidates = _reached([name], steps) - {name}
    while True:
        more = {
            each
            for each in candidates - gone
            if each not in kept
            and all(user in gone for user, models in steps.items() if each in models)
        }
        if not more:
            return gone - {name}
        gone |= more


def _reached(names: Iterable[str], edges: Steps) -> set[str]:
    """Returns what can be reached from these names; they themselves only if a cycle leads back."""
    reached: set[str] = set()
    pending = list(names)
    while pending:
        for each in edges.get(pending.pop(), ()):
            if each not in reached:
                reached.add(each)
                pending.append(each)
    return reached
