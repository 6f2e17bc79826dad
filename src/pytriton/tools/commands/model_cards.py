# SPDX-License-Identifier: Apache-2.0
"""What a server says about its models: their tensors, how they are served, their states."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from pytriton.client.kserve.errors import (
    AskError,
    RestrictedError,
    ServerRefusedError,
    UnansweredError,
)
from pytriton.client.kserve.metrics import series
from pytriton.client.kserve.records import Document, KserveClient
from pytriton.tools.commands.server_options import ServerClients

READY = "READY"
_NOT_SERVED = "has no available versions"


@dataclasses.dataclass(frozen=True, slots=True)
class TensorCard:
    """An input or output; the shape has the axis of batches, as in the model's metadata."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    is_optional: bool = False

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"{self.name}{'?' if self.is_optional else ''} {self.datatype} [{shape}]"


@dataclasses.dataclass(frozen=True, slots=True)
class ModelCard:
    """A version of a model; what the server did not say is None or empty."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""
    platform: str = ""
    inputs: tuple[TensorCard, ...] | None = None
    outputs: tuple[TensorCard, ...] | None = None
    max_batch_size: int | None = None
    is_decoupled: bool = False
    is_sequence: bool = False
    steps: tuple[str, ...] = ()  # the models of an ensemble
    config: Document = dataclasses.field(default_factory=dict)

    @property
    def has_batches(self) -> bool:
        """Whether the first axis of each tensor is the batch."""
        return bool(self.max_batch_size)


@dataclasses.dataclass(frozen=True, slots=True)
class ModelListing:
    """The models of a server, and what could not be found out about them."""

    models: tuple[ModelCard, ...]
    notes: tuple[str, ...] = ()


def describe(server: KserveClient, model: str, version: str) -> ModelCard:
    """Ask for everything about one model.

    Raises:
        AskError: There is no such model, or the server does not tell.
    """
    metadata = server.model_metadata(model, version)
    config: Document = {}
    try:
        config = server.model_config(model, version)
    except UnansweredError:
        raise
    except AskError:
        pass  # restricted, or a server without this extension of Triton
    versions = metadata.get("versions") or [""]
    return card_of(metadata, config, version or str(versions[-1]))


def card_of(metadata: Document, config: Document, version: str) -> ModelCard:
    """Returns what the metadata and the configuration of a model say."""
    optional = {entry["name"] for entry in config.get("input", ()) if entry.get("optional")}
    steps = config.get("ensemble_scheduling", {}).get("step", ())
    return ModelCard(
        name=metadata["name"],
        version=version,
        state=READY,
        platform=metadata.get("platform", ""),
        inputs=_tensors(metadata.get("inputs", ()), optional),
        outputs=_tensors(metadata.get("outputs", ()), ()),
        max_batch_size=int(config.get("max_batch_size", 0)) if config else None,
        is_decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled")),
        is_sequence="sequence_batching" in config,
        steps=tuple(step["model_name"] for step in steps),
        config=config,
    )


def _tensors(entries: Iterable[Document], optional: Iterable[str]) -> tuple[TensorCard, ...]:
    return tuple(
        TensorCard(
            entry["name"],
            entry["datatype"],
            tuple(int(size) for size in entry["shape"]),
            is_optional=bool(entry.get("optional")) or entry["name"] in optional,
        )
        for entry in entries
    )


def list_models(connection: ServerClients, *, describes: bool = True) -> ModelListing:
    """List the models of a server from the best source that it allows, described if they are ready.

    Raises:
        AskError: The server is not there, or nothing tells its models.
    """
    notes: list[str] = []
    try:
        cards = [_card_of_index(entry) for entry in connection.server.index()]
    except UnansweredError:
        raise
    except AskError as error:
        found, source = _open_list(connection)
        if found is None:
            raise _nothing_tells(connection, error) from error
        cards = found
        what = f"needs {error.needed}" if isinstance(error, RestrictedError) else "is not there"
        notes.append(f"The repository index {what}; this list of loaded models is from {source}.")
    if describes:
        cards = [_described(connection.server, card) for card in cards]
    return ModelListing(
        tuple(sorted(cards, key=lambda card: (card.name, card.version))), tuple(notes)
    )


def _card_of_index(entry: Document) -> ModelCard:
    """Returns what an entry of the index says, or one of the page's list, which is alike."""
    return ModelCard(
        entry["name"],
        str(entry.get("version", "")),
        # A model that was never loaded has no state.
        entry.get("state") or "UNLOADED",
        entry.get("reason", ""),
    )


def _described(server: KserveClient, card: ModelCard) -> ModelCard:
    if card.state not in (READY, ""):
        return card
    try:
        full = describe(server, card.name, card.version)
    except UnansweredError:
        raise
    except AskError as error:
        is_gone = isinstance(error, ServerRefusedError)
        return dataclasses.replace(card, reason=card.reason or (str(error) if is_gone else ""))
    return dataclasses.replace(full, version=card.version or full.version, reason=card.reason)


def _open_list(connection: ServerClients) -> tuple[list[ModelCard] | None, str]:
    """Returns the models that the metrics port tells without a token, and what told them."""
    try:
        document: Any = connection.metrics.get_document("/page/api/models")
        return [_card_of_index(entry) for entry in document["models"]], "the server's page"
    except (AskError, KeyError, TypeError):
        pass
    try:
        found = models_in_metrics(connection.metrics.get_text("/metrics"))
    except AskError:
        return None, ""
    return [ModelCard(name, version) for name, version in found], "its metrics"


def models_in_metrics(text: str) -> list[tuple[str, str]]:
    """Returns name and version of the models that have metrics."""
    found = {
        (labels["model"], labels["version"])
        for name, labels, _ in series(text)
        if name.startswith("nv_inference_") and {"model", "version"} <= labels.keys()
    }
    return sorted(found)


def _nothing_tells(connection: ServerClients, error: AskError) -> AskError:
    if not isinstance(error, RestrictedError):
        return AskError(
            f"{connection.address} does not list its models, and nothing answers at "
            f"{connection.metrics_address}; --metrics-url says where its metrics are."
        )
    return AskError(
        f"{error} Without it the names of the models could come from the metrics, but nothing "
        f"answers at {connection.metrics_address}; --metrics-url says where they are."
    )


def unknown_model(
    connection: ServerClients, model: str, version: str, error: ServerRefusedError
) -> AskError:
    """Returns what to say when a server has no such model: the names that it has."""
    try:
        cards = list_models(connection, describes=False).models
    except AskError:
        return AskError(f"{connection.address} says: {error}.")
    same = [card for card in cards if card.name == model]
    if not same and _NOT_SERVED in str(error):  # lists of loaded models leave it out
        return AskError(f"{connection.address} says: {error}.")
    versions = [card.version for card in same]
    if version and same and version not in versions:
        has = f"it has {', '.join(versions)}"
        return AskError(f"Model '{model}' has no version {version} on {connection.address}; {has}.")
    if same:
        states = ", ".join(f"version {card.version or '-'} {state_text(card)}" for card in same)
        return AskError(f"Model '{model}' is not ready on {connection.address}: {states}.")
    names = sorted({card.name for card in cards})
    return AskError(
        f"There is no model '{model}' on {connection.address}. {_suggestion(model, names)}"
    )


def _suggestion(model: str, names: Sequence[str]) -> str:
    if not names:
        return "It has no models."
    lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(model.lower(), list(lower), n=1, cutoff=0.6)
    listed = f"It has {', '.join(names[:12])}{' and others' if len(names) > 12 else ''}."
    return f"Did you mean '{lower[near[0]]}'? {listed}" if near else listed


def state_text(card: ModelCard) -> str:
    """Returns the state of a model with its reason."""
    return f"{card.state} ({short_reason(card)})" if card.reason else card.state or "unknown"


def short_reason(card: ModelCard) -> str:
    """Returns why a model is not ready in one line, with the first place in its code."""
    cause, _, places = card.reason.partition("\n\nAt:\n")
    lines = [*cause.strip().splitlines()[:1], *places.strip().splitlines()[:1]]
    return ", at ".join(lines)
