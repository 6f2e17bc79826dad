# SPDX-License-Identifier: Apache-2.0
"""`pytriton models`: lists the models of a server as a table or as JSON, or describes one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytriton.client.kserve.errors import AskError, ServerRefusedError
from pytriton.tools.commands.infer.text import example_line, traits
from pytriton.tools.commands.model_cards import (
    ModelCard,
    ModelListing,
    TensorCard,
    describe,
    list_models,
    short_reason,
    unknown_model,
)
from pytriton.tools.commands.server_options import ServerClients, add_server_options, connect
from pytriton.utils.option_parser import OptionParser

_STYLES = {"READY": "green", "UNAVAILABLE": "red", "LOADING": "yellow", "UNLOADING": "yellow"}
_BELOW = "\n" + " " * 14  # where the texts of `_details` begin
_WIDE = 10_000  # where no terminal limits the lines


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """List the models of a server, or describe one."""
    options = _parser().parse_args(list(arguments))
    try:
        connection = connect(options)
        with contextlib.closing(connection):
            if options.model:
                listing = _one_model(connection, options.model)
            else:
                listing = list_models(connection)
            head = "" if options.json else _head(connection, len(listing.models))
    except AskError as error:
        complain(str(error))
        return 1
    if options.json:
        document: dict[str, object] = {"models": [card_document(card) for card in listing.models]}
        if options.model:
            document["config"] = dict(listing.models[-1].config) or None
        show(json.dumps(document, indent=2))
    elif options.model:
        show(details_text(listing.models, str(connection.address)))
    else:
        show(head)
        if listing.models:
            show(table_text(listing.models, _width(), is_coloured=_has_colours()))
        for note in listing.notes:
            complain(note)
    return 0


def table_text(cards: Sequence[ModelCard], width: int | None, *, is_coloured: bool) -> str:
    """Returns one row for each version of a model.

    Args:
        cards: the models.
        width: of the terminal; None if the output goes elsewhere, where each row is one line.
        is_coloured: whether states have colours.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("MODEL", overflow="fold")
    table.add_column("VERSION")
    table.add_column("STATE")
    table.add_column("BATCH", justify="right")
    table.add_column("INPUTS → OUTPUTS", overflow="fold")
    for card in cards:
        table.add_row(
            Text(card.name, style="bold"),
            card.version or "-",
            Text(card.state or "-", style=_STYLES.get(card.state, "")),
            "-" if card.max_batch_size is None else str(card.max_batch_size or "no"),
            _what(card),
        )
    return rendered(table, width, is_coloured=is_coloured)


def _what(card: ModelCard) -> Text:
    if card.inputs is None:
        return Text(short_reason(card), style="red" if card.state == "UNAVAILABLE" else "")
    text = Text(f"{_tensors(card.inputs, card)} → {_tensors(card.outputs or (), card)}")
    kinds = kinds_of(card)
    if kinds:
        text.append(f"  ({', '.join(kinds)})", style="dim")
    return text


def kinds_of(card: ModelCard) -> list[str]:
    """Returns what is special about a model, in short words."""
    kinds = [
        word
        for word, is_so in (("decoupled", card.is_decoupled), ("sequence", card.is_sequence))
        if is_so
    ]
    return [*kinds, f"ensemble of {' → '.join(card.steps)}"] if card.steps else kinds


def _tensors(tensors: Iterable[TensorCard], card: ModelCard) -> str:
    return ", ".join(_tensor(tensor, card) for tensor in tensors) or "nothing"


def _tensor(tensor: TensorCard, card: ModelCard) -> str:
    sizes = tensor.shape[1:] if card.has_batches else tensor.shape  # BATCH has the first axis
    mark = "?" if tensor.is_optional else ""
    return f"{tensor.name}{mark} {tensor.datatype}[{', '.join(map(str, sizes))}]"


def rendered(table: Table, width: int | None, *, is_coloured: bool) -> str:
    """Returns a table as text without blanks at the ends of lines."""
    console = Console(
        file=io.StringIO(),
        width=width or _WIDE,
        force_terminal=is_coloured,
        color_system="standard" if is_coloured else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


def details_text(cards: Sequence[ModelCard], address: str) -> str:
    """Returns everything about the versions of one model."""
    return "\n\n".join(_details(card, address) for card in cards)


def _details(card: ModelCard, address: str) -> str:
    head = f"{card.name} version {card.version}" if card.version else card.name
    lines = [head, f"  state       {card.state or 'unknown'}"]
    if card.reason:
        said = [line for line in card.reason.splitlines() if line.strip()]
        lines.append(f"  reason      {_BELOW.join(said)}")
    if card.inputs is None:
        return "\n".join(lines)
    lines += [f"  {name:<11} {value}" for name, value in _facts(card)]
    for title, tensors in (("inputs", card.inputs), ("outputs", card.outputs or ())):
        names = max((len(tensor.name) for tensor in tensors), default=0)
        kinds = [f"{each.name:<{names}}  {each.datatype} {list(each.shape)}" for each in tensors]
        for number, (kind, tensor) in enumerate(zip(kinds, tensors, strict=True)):
            optional = "  optional" if tensor.is_optional else ""
            lines.append(f"  {'' if number else title:<11} {kind}{optional}")
    lines.append(f"  ask it      {example_line(card, address)}")
    return "\n".join(lines)


def _facts(card: ModelCard) -> Iterable[tuple[str, str]]:
    if card.platform or card.config.get("backend"):
        yield "backend", str(card.config.get("backend") or card.platform)
    if special := traits(card):
        yield "serves", special
    groups = card.config.get("instance_group", ())
    if groups:
        counts = (f"{group.get('count', 1)} on {_kind(group)}" for group in groups)
        yield "instances", ", ".join(counts)
    batching = card.config.get("dynamic_batching")
    if batching is not None:
        yield "batching", _batching(batching)
    if card.config.get("response_cache", {}).get("enable"):
        yield "cache", "on"


def _kind(group: Any) -> str:
    return str(group.get("kind", "KIND_AUTO")).removeprefix("KIND_")


def _batching(batching: Any) -> str:
    delay = int(batching.get("max_queue_delay_microseconds", 0))
    preferred = batching.get("preferred_batch_size", ())
    parts = [f"dynamic, waits up to {delay} µs" if delay else "dynamic"]
    if preferred:
        parts.append(f"prefers {', '.join(map(str, preferred))}")
    return ", ".join(parts)


def card_document(card: ModelCard) -> dict[str, Any]:
    """Returns what is known about a version as JSON; what is not known is null."""
    return {
        "name": card.name,
        "version": card.version,
        "state": card.state or None,
        "reason": card.reason,
        "platform": card.platform or None,
        "max_batch_size": card.max_batch_size,
        "decoupled": card.is_decoupled,
        "sequence": card.is_sequence,
        "ensemble_steps": list(card.steps),
        "inputs": _documents(card.inputs),
        "outputs": _documents(card.outputs),
    }


def _documents(tensors: Sequence[TensorCard] | None) -> list[dict[str, Any]] | None:
    if tensors is None:
        return None
    return [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "optional": tensor.is_optional,
        }
        for tensor in tensors
    ]


def _one_model(connection: ServerClients, model: str) -> ModelListing:
    """Returns all versions of a model, from the index where the server allows that."""
    try:
        cards = [card for card in list_models(connection).models if card.name == model]
    except AskError:
        cards = []
    if cards:
        return ModelListing(tuple(cards))
    return ModelListing((_described(connection, model),))


def _described(connection: ServerClients, model: str) -> ModelCard:
    try:
        return describe(connection.server, model, "")
    except ServerRefusedError as error:
        if error.is_unknown_model:
            raise unknown_model(connection, model, "", error) from error
        raise


def _head(connection: ServerClients, count: int) -> str:
    try:
        metadata = connection.server.server_metadata()
        who = f"{metadata.get('name', 'server')} {metadata.get('version', '')}".strip()
    except AskError:
        who = "a server that does not tell its name"
    models = "1 model" if count == 1 else f"{count or 'no'} models"
    return f"{connection.address}: {who}, {models}"


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _has_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _parser() -> OptionParser:
    parser = OptionParser(
        prog="pytriton models",
        description="List the models of a server: versions, states, batch sizes, inputs and "
        "outputs. With a name, say more about that model.",
        epilog="Where the server's repository index needs a token, the list comes from its page or "
        "its metrics. Shapes in the list are those of one row where there are batches; "
        "a ? marks an optional input.",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_server_options(parser)
    return parser
