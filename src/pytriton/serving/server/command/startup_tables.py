# SPDX-License-Identifier: Apache-2.0
"""Draws the tables that a server logs when its models are loaded, as Triton does."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytriton.base.model_spec import identifier_of
from pytriton.base.request_ids import visible
from pytriton.serving.server.api.documents import EXTENSIONS, TRITON_VERSION

if TYPE_CHECKING:
    from pytriton.serving.engine.client import IndexEntry
    from pytriton.serving.server.command.serving_protocol import Backend
    from pytriton.serving.server.options.server_options import ServerOptions

_MIN_WIDTH = 8  # columns of text, even on a narrower terminal


def draw_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None
) -> str:
    """Draw a table.

    Args:
        headings: the headings of the columns.
        rows: the cells, which may have several lines.
        width: columns of the terminal, if any; longer cells are wrapped.

    Returns:
        The lines of the table, with a line break after each.
    """
    cells = [[_cell_lines(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*cells)]  # noqa: B905  rows are as long as headings
    if width is not None:
        widths = _shrink_widths(widths, width - 3 * len(widths) - 1)
    border = "+" + "+".join("-" * (column + 2) for column in widths) + "+"
    lines = [border, *_row_lines(cells[0], widths), border]
    for row in cells[1:]:
        lines += _row_lines(row, widths)
    return "\n".join([*lines, border]) + "\n"


def _cell_lines(cell: str) -> list[str]:
    # Texts of models must not contain control sequences for the terminal.
    return [visible(line) for line in cell.splitlines()] or [""]


def _shrink_widths(widths: list[int], available: int) -> list[int]:
    """Reduce the widest columns until all fit; the others keep their widths."""
    limit = max(widths)
    while limit > _MIN_WIDTH and sum(min(width, limit) for width in widths) > available:
        limit -= 1
    return [min(width, limit) for width in widths]


def _row_lines(row: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    wrapped = [
        [
            part
            for line in cell
            for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]
        ]
        if max(map(len, cell)) > width
        else cell
        for cell, width in zip(row, widths, strict=True)
    ]
    for index in range(max(map(len, wrapped))):
        parts = [cell[index] if index < len(cell) else "" for cell in wrapped]
        padded = (part.ljust(width) for part, width in zip(parts, widths, strict=True))
        yield "| " + " | ".join(padded) + " |"


def agent_table(agents: Mapping[str, str], width: int | None = None) -> str:
    """Returns the table of repository agents, given their paths by name."""
    return draw_table(("Repository Agent", "Path"), agents.items(), width)


def backend_table(
    backends: Iterable[Backend], options: ServerOptions, width: int | None = None
) -> str:
    """Returns the table of backends with their settings of the command line."""
    rows = (
        (backend.name, backend.path, _compact({"cmdline": settings}))
        for backend in backends
        for settings in (options.repository.backend_settings(backend.name),)
    )
    return draw_table(("Backend", "Path", "Config"), rows, width)


def model_table(index: Iterable[IndexEntry], width: int | None = None) -> str:
    """Returns the table of model versions with their states."""
    rows = (
        (identifier_of(entry.namespace, entry.name), entry.version or "-", _status(entry))
        for entry in index
    )
    return draw_table(("Model", "Version", "Status"), rows, width)


def option_table(options: ServerOptions, width: int | None = None) -> str:
    """Returns the table of the server's most important settings."""
    return draw_table(("Option", "Value"), _option_rows(options), width)


def _status(entry: IndexEntry) -> str:
    if not entry.version:
        return f"Not loaded: {entry.reason or 'No model version was found'}"
    return f"{entry.state}: {entry.reason}" if entry.reason else entry.state


def _option_rows(options: ServerOptions) -> Iterator[tuple[str, str]]:
    repository = options.repository
    yield "server_id", options.id
    yield "server_version", TRITON_VERSION
    yield "server_extensions", " ".join(EXTENSIONS)
    for index, path in enumerate(repository.paths):
        yield f"model_repository_path[{index}]", path
    yield "model_control_mode", f"MODE_{repository.model_control_mode.upper()}"
    for index, name in enumerate(repository.load_models):
        yield f"startup_models_{index}", name
    yield "strict_model_config", str(int(not repository.auto_complete))
    yield "model_config_name", repository.model_config_name or ""
    yield "rate_limit", "EXEC_COUNT" if repository.rate_limit else "OFF"
    for index, resource in enumerate(repository.rate_limit_resources):
        device = -1 if resource.device is None else resource.device
        document = {"name": resource.name, "count": resource.count, "device": device}
        yield f"rate_limit_resource[{index}]", _compact(document)
    if repository.executor != "local":
        yield "executor", repository.executor
        yield "ray_address", options.ray.address or os.environ.get("RAY_ADDRESS", "auto")
    pinned_bytes = options.metrics_options.pinned_memory_pool_bytes
    yield "pinned_memory_pool_byte_size", str(pinned_bytes)
    yield "min_supported_compute_capability", f"{repository.min_compute_capability:.1f}"
    yield "strict_readiness", str(int(options.strict_readiness))
    yield "exit_timeout", str(options.exit_timeout_s)
    yield "cache_enabled", str(int(options.cache_bytes > 0))


def _compact(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))
