# SPDX-License-Identifier: Apache-2.0
"""`pytriton models`: lists the models of a server, or says everything about one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence

from pytriton.client.kserve.errors import AskError, ServerRefusedError
from pytriton.tools.commands.kserve.models import (
    ModelCard,
    ModelListing,
    describe,
    list_models,
    unknown_model,
)
from pytriton.tools.commands.kserve.options import ServerConnection, add_server_options, connect
from pytriton.tools.commands.models.text import card_document, details_text, table_text
from pytriton.utils.option_parser import OptionParser


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Run the command.

    Args:
        arguments: the command line after `models`.
        show: prints the models.
        complain: prints why there are none, and what needs a token.

    Returns:
        The exit code.
    """
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


def _one_model(connection: ServerConnection, model: str) -> ModelListing:
    """Returns all versions of a model, from the index where the server allows that."""
    try:
        cards = [card for card in list_models(connection).models if card.name == model]
    except AskError:
        cards = []
    if cards:
        return ModelListing(tuple(cards))
    return ModelListing((_described(connection, model),))


def _described(connection: ServerConnection, model: str) -> ModelCard:
    try:
        return describe(connection.server, model, "")
    except ServerRefusedError as error:
        if error.is_unknown_model:
            raise unknown_model(connection, model, "", error) from error
        raise


def _head(connection: ServerConnection, count: int) -> str:
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
