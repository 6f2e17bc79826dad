# SPDX-License-Identifier: Apache-2.0
"""The interface of the launcher process to a cluster: Ray (`ray_cluster.py`), or a fake of tests.

Also the names of actors and placement groups, and the meaning of Ray's errors, which are known by
their texts. This module does not import Ray.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pytriton.runtime.executor.remote.starter import NodeStatus

_TEXT_LIMIT = 2000
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# What Ray adds about an actor; we name the instance, its node and its process ourselves.
_ACTOR = re.compile(r"\n\t(?:class_name|actor_id|pid|name|namespace|ip): [^\n]*")
_LINES = re.compile(r"\s*\n\s*")
_MISSING = re.compile(r"No module named '([\w.]+)'")
_GONE = (
    "RpcError",
    "ConnectionError",
    "GetTimeoutError",
    "RaySystemError",
    "ConnectionAbortedError",
)
_NOT_FOUND = "Could not find any running Ray instance"
_NOT_CONNECTED = "Failed to connect to Ray cluster"
_RANK = re.compile(r"(.*)/([0-9]+)", re.DOTALL)


class ClusterError(Exception):
    """A request to the cluster failed; the text says why."""


class ClusterGoneError(ClusterError):
    """The cluster does not answer, or cannot be reached."""


class Whereabouts(NamedTuple):
    """The node of an actor."""

    version: str  # of this package
    node_id: str
    address: str
    free_port: int


class Shell(Protocol):
    """An actor that runs the process of an instance; see `runtime.cluster.actor.ActorShell`.

    All methods that are awaited raise `ClusterError` if the actor has died.
    """

    name: str

    async def where(self) -> Whereabouts:
        """Returns where it is, as soon as it is placed."""

    async def start(self, order: str, rank: int, variables: Mapping[str, str]) -> int:
        """Start the process; returns its id."""

    async def wait(self) -> str:
        """Returns how the process ended, when it has."""

    def stop(self) -> None:
        """Kill the process, after which the actor ends; does not wait."""


class Reservation(Protocol):
    """Resources that are set aside on nodes: a placement group."""

    name: str


class Cluster(Protocol):
    """A cluster that this process is connected to. All methods raise `ClusterError`."""

    async def connect(self, address: str, namespace: str, working_dir: str) -> tuple[str, str]:
        """Connect; returns the cluster's address, and that of this machine as nodes reach it."""

    async def nodes(self) -> tuple[NodeStatus, ...]:
        """Returns the nodes that are alive."""

    async def create_shell(
        self,
        name: str,
        resources: Mapping[str, float],
        *,
        node_id: str = "",
        reservation: Reservation | None = None,
        rank: int = 0,
    ) -> Shell:
        """Create an actor, which outlives this process; it need not be placed yet.

        With `node_id`, it is placed on that node, or on another one if there is no room.
        """

    async def find_shells(self) -> Mapping[str, Shell]:
        """Returns the actors of this namespace by their names."""

    async def kill(self, shell: Shell) -> None:
        """End an actor, also one that is not placed yet."""

    async def reserve(
        self, name: str, bundles: Sequence[Mapping[str, float]], *, outlives_us: bool
    ) -> Reservation:
        """Ask for resources; they need not be there yet."""

    async def is_ready(self, reservation: Reservation) -> bool:
        """Returns whether the resources are set aside."""

    async def find_reservations(self, prefix: str) -> Mapping[str, Reservation]:
        """Returns the reservations whose names begin so, by name."""

    async def release(self, reservation: Reservation) -> None:
        """Give resources back; actors that use them end."""

    async def close(self) -> None:
        """Disconnect."""


def is_cluster_gone(error: BaseException) -> bool:
    """Returns whether an error of Ray's means that the cluster is not there."""
    return type(error).__name__ in _GONE or isinstance(error, ConnectionError)


def describe_failure(error: BaseException) -> str:
    """Returns the cause of an error in words for operators of the cluster."""
    text = _COLOURS.sub("", str(error)).strip()
    if _ACTOR.search(text):
        text = _LINES.sub(" ", _ACTOR.sub("", text))
    missing = _MISSING.findall(text)
    if missing and missing[-1].split(".")[0] in ("pytriton", "msgspec", "numpy"):
        return (
            f"the Python of a node cannot import '{missing[-1]}': install this server's version of"
            " pytriton on all nodes of the cluster"
        )
    if _NOT_FOUND in text:
        return (
            "there is no Ray cluster on this machine, and no address of one was given: start one "
            "with 'ray start --head', or set RAY_ADDRESS or the server's setting ray_address"
        )
    if _NOT_CONNECTED in text:  # Ray does not say that this was the reason, but logs it
        text += (
            ". If the cluster asks for a token, the server needs it, too: set RAY_AUTH_MODE=token, "
            "and put the token into ~/.ray/auth_token or RAY_AUTH_TOKEN"
        )
    if len(text) > _TEXT_LIMIT:
        text = f"{text[: _TEXT_LIMIT // 2]} … {text[-_TEXT_LIMIT // 2 :]}"
    return text or type(error).__name__


def actor_name(start: str, rank: int) -> str:
    """Returns the name of the actor with this rank; the first has the name of the start."""
    return f"{start}/{rank}" if rank else start


def read_actor_name(name: str) -> tuple[str, int]:
    """Returns the start and the rank of an actor."""
    match = _RANK.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, 0)


def group_name(namespace: str, start: str) -> str:
    """Returns the name of a placement group, which has the namespace: Ray lists all of them."""
    return f"{namespace}/{start}"


def known_actors(names: Iterable[str], known: Collection[str]) -> dict[str, list[str]]:
    """Returns the actors of each known start, by rank; the list is empty if there are none."""
    found: dict[str, list[str]] = {start: [] for start in known}
    for name in sorted(names, key=read_actor_name):
        start, _ = read_actor_name(name)
        if start in found:
            found[start].append(name)
    return found


def unknown_actors(names: Iterable[str], known: Collection[str]) -> list[str]:
    """Returns the actors of unknown starts, which have to end."""
    return [name for name in names if read_actor_name(name)[0] not in known]


def unknown_groups(names: Iterable[str], namespace: str, known: Collection[str]) -> list[str]:
    """Returns the placement groups that belong to no known start."""
    wanted = {group_name(namespace, start) for start in known}
    return [name for name in names if name not in wanted]
