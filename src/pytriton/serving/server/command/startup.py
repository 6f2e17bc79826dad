# SPDX-License-Identifier: Apache-2.0
"""Starts a server of repositories: loads the models, logs the tables, opens the ports.

On a terminal it shows the progress of loading. If the server cannot start, it gives hints beside
the errors of Triton.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pytriton.base.errors import ServerError
from pytriton.base.lazy_module import LazyModule
from pytriton.base.model_spec import identifier_of
from pytriton.base.request_ids import visible
from pytriton.constants import DEFAULT_HTTP_PORT
from pytriton.serving.engine.model_state import VersionState
from pytriton.serving.server.api.documents import EXTENSIONS, TRITON_VERSION
from pytriton.serving.server.options.repository_options import ALL_MODELS
from pytriton.serving.server.process.logs import log_table
from pytriton.utils.terminal import Colour, has_colours, is_terminal, paint, width_of

if TYPE_CHECKING:
    from pytriton.serving.engine.client import IndexEntry
    from pytriton.serving.repository.reading import source
    from pytriton.serving.server.command.lifecycle import (
        LoadedBackend,
        LoadProgress,
        OpenPorts,
        ServerLifecycle,
    )
    from pytriton.serving.server.options.server_options import ServerOptions
else:  # a server of bound models has no repositories
    source = LazyModule("pytriton.serving.repository.reading.source")

logger = logging.getLogger(__name__)

_PORT_IN_USE = re.compile(r"failed to start (.+) service: .* already in use")
_CONFIG = "config.pbtxt"
_MIN_WIDTH = 8  # columns of text, even on a narrower terminal
_REPORT_INTERVAL_S = 10.0
_CONTROL_API = "model-repository"
_USE_API = "inference"
_MAX_FAILED_MODELS = 20
_ANY_ADDRESSES = ("0.0.0.0", "::")
_HIDE = "\r\x1b[2K"  # go to the beginning of the line and erase it


class StartError(Exception):
    """The server cannot start; the text is printed last, and is empty if the log has it."""


def creation_error(error: ServerError) -> StartError:
    """Returns the error for a server that could not be created."""
    return StartError(f"error: creating server: {error.kind} - {error.message}")


def _known_models(serving: ServerLifecycle, options: ServerOptions) -> list[IndexEntry]:
    """Returns the models to show; in mode explicit, those of which no version was wanted are not.

    The index has every folder of the repositories.
    """
    wanted = options.repository.load_models
    is_explicit = options.repository.model_control_mode == "explicit"
    shows_all = not is_explicit or ALL_MODELS in wanted
    return [
        entry
        for entry in serving.index()
        if shows_all or entry.version or entry.reason or entry.name in wanted
    ]


def _failed_models(models: Sequence[IndexEntry]) -> list[str]:
    """Returns a line for each model that cannot be loaded, as tables are between it and its log."""
    failed = [each for each in models if each.reason and each.state != VersionState.READY.value]
    lines = [_failure_line(each) for each in failed[:_MAX_FAILED_MODELS]]
    more = len(failed) - len(lines)
    return [*lines, f"and {more} more, which the table of models names"] if more else lines


def _start_error(failed: Sequence[str], failure: ServerError) -> StartError:
    """Returns the error for models that cannot be loaded, which are named."""
    lines = ["Models that cannot be loaded:", *(f"  {each}" for each in failed)] if failed else []
    return StartError("\n".join([*lines, str(creation_error(failure))]))


def _failure_line(entry: IndexEntry) -> str:
    name = identifier_of(entry.namespace, entry.name)
    version = f" version {entry.version}" if entry.version else ""
    cause, _, place = entry.reason.partition("\n\nAt:\n")
    where = f", at {place.strip().splitlines()[0]}" if place.strip() else ""
    return visible(f"{name}{version}: {cause.strip().splitlines()[0]}{where}")


async def start_up(
    serving: ServerLifecycle,
    options: ServerOptions,
    progress: ProgressLine,
    width: int | None = None,
) -> OpenPorts:
    """Start a server and log what it serves; returns the ports that clients may use.

    Raises:
        StartError: a port is taken, or a model cannot be loaded and `exit_on_error` is set.
    """
    failure = await _load(serving, progress)
    log_table(logger, agent_table(source.AGENTS, width))
    log_table(logger, backend_table(serving.backends(), options, width))
    models = _known_models(serving, options)
    log_table(logger, model_table(models, width))
    log_table(logger, option_table(options, width))
    if failure is not None:
        for hint in repository_hints(options.repository.paths):
            logger.error("%s", hint)
        if options.exit_on_error:
            raise _start_error(_failed_models(models), failure)
        logger.error("%s: %s", failure.kind, failure.message)
        for line in _failed_models(models):
            logger.error("cannot be loaded: %s", line)
    _warn_of_open_control(options)
    try:
        ports = await serving.open_ports()
    except ServerError as error:
        logger.error("%s", error.message)  # noqa: TRY400  the message is enough
        if hint := port_hint(error.message):
            logger.error("%s", hint)  # noqa: TRY400  it is not about the exception
        raise StartError from error
    log_ports(ports, options)
    return ports


async def _load(serving: ServerLifecycle, progress: ProgressLine) -> ServerError | None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    loading = loop.create_task(serving.load(progress.update))
    try:
        while not (await asyncio.wait({loading}, timeout=_REPORT_INTERVAL_S))[0]:
            progress.log(loop.time() - start)
        loading.result()
    except ServerError as error:
        return error
    finally:
        progress.end()
        if not loading.done():  # this start was cancelled
            loading.cancel()
            await asyncio.wait({loading})
    return None


def log_ports(ports: OpenPorts, options: ServerOptions) -> None:
    """Log the addresses of the server, and what its operator chose to leave open."""
    for note in options.secure_notes:
        logger.warning("--secure, but with %s", note)
    for name, port, endpoint in (
        ("GRPCInferenceService", ports.grpc, options.grpc),
        ("HTTPService", ports.http, options.http),
        ("Sagemaker HTTPService", ports.sagemaker, options.sagemaker),
        ("Vertex AI HTTPService", ports.vertex_ai, options.vertex_ai),
        ("Metrics Service", ports.metrics, options.metrics),
    ):
        if port:
            logger.info("Started %s at %s:%d", name, endpoint.address, port)
    if warning := openness_warning(options, ports):
        logger.warning("%s", warning)
    if ports.metrics and options.page.allow:
        url = page_url(options.metrics.address, ports.metrics, uses_tls=options.tls is not None)
        port = ports.http or ports.grpc
        where = f" -u localhost:{port}" if port != DEFAULT_HTTP_PORT else ""
        logger.info("The page is at %s ('pytriton page%s' adds its token)", url, where)


def openness_warning(options: ServerOptions, ports: OpenPorts) -> str:
    """Returns who may use the models, if other machines may without being asked; else nothing."""
    if options.access.config is not None:
        return ""
    places = [
        f"{endpoint.address}:{port}"
        for endpoint, port, tls, groups in (
            (options.http, ports.http, options.tls, options.http_restricted),
            (options.grpc, ports.grpc, options.grpc_tls, options.grpc_restricted),
            (options.sagemaker, ports.sagemaker, options.tls, options.http_restricted),
            (options.vertex_ai, ports.vertex_ai, options.tls, options.http_restricted),
        )
        if port
        and not endpoint.is_loopback
        and not (tls is not None and tls.client_auth == "required")
        and not any(_USE_API in group.apis for group in groups)
    ]
    if not places:
        return ""
    return (
        f"Whoever reaches {' or '.join(places)} may use the models: --auth-config says who may do "
        "what, and only this machine reaches the address 127.0.0.1"
    )


def page_url(address: str, port: int, *, uses_tls: bool = False) -> str:
    """Returns the address of the page for a browser on this machine."""
    host = "localhost" if address in _ANY_ADDRESSES else address
    scheme = "https" if uses_tls else "http"
    return f"{scheme}://[{host}]:{port}/" if ":" in host else f"{scheme}://{host}:{port}/"


def _warn_of_open_control(options: ServerOptions) -> None:
    """Warn if any client can load models: in explicit mode it can send files, that is, code."""
    # With a policy, only those with a right may.
    if options.repository.model_control_mode != "explicit" or options.access.config is not None:
        return
    has_token = any(_CONTROL_API in group.apis for group in options.http_restricted)
    if options.browsers.allow_origins and not has_token:
        logger.warning(
            "Pages of the origins %s may load models, and a model is code: restrict it with "
            "--http-restricted-api=%s:<key>=<value>",
            ", ".join(options.browsers.allow_origins),
            _CONTROL_API,
        )
    for endpoint, groups, flag in (
        (options.http, options.http_restricted, "http-restricted-api"),
        (options.sagemaker, options.http_restricted, "http-restricted-api"),
        (options.vertex_ai, options.http_restricted, "http-restricted-api"),
        (options.grpc, options.grpc_restricted, "grpc-restricted-protocol"),
    ):
        is_restricted = any(_CONTROL_API in group.apis for group in groups)
        if endpoint.allow and not is_restricted and not endpoint.is_loopback:
            logger.warning(
                "Whoever reaches %s:%d may load models, and a model is code: "
                "restrict it with --%s=%s:<key>=<value>",
                endpoint.address,
                endpoint.port,
                flag,
                _CONTROL_API,
            )


# Hints for a server that does not start


def port_hint(message: str) -> str:
    """Returns what to do about a port that is taken; "" if the error is another one."""
    found = _PORT_IN_USE.match(message)
    if found is None:
        return ""
    option = f"--{found[1].lower().replace(' ', '-')}-port"
    return f"Stop the program that uses it, or choose another port with {option}"


def repository_hints(paths: Sequence[str]) -> list[str]:
    """Returns what is wrong with folders that were given as repositories."""
    hints: list[str] = []
    for folder in (Path(path).absolute() for path in paths if "://" not in path):
        hint = _folder_hint(folder)
        hints += [hint] if hint else _version_hints(folder)
    return hints


def _folder_hint(folder: Path) -> str:
    if not folder.exists():
        return f"Expected a folder of models, but {folder} does not exist"
    if not folder.is_dir():
        return f"Expected a folder of models, but {folder} is a file"
    if (folder / _CONFIG).exists():
        return (
            f"{folder} is the folder of one model, as it has a {_CONFIG}: "
            f"the repository is perhaps the one above, --model-repository={folder.parent}"
        )
    return ""


def _version_hints(repository: Path) -> list[str]:
    """Returns which models have their file beside `config.pbtxt`, where no version has it."""
    try:
        files = sorted(repository.glob("*/model.*"))
        return [
            f"{file} is not in the folder of a version: move it to {file.parent}/1/{file.name}"
            for file in files
            if not any(each.is_dir() and each.name.isdecimal() for each in file.parent.iterdir())
        ]
    except OSError:  # the errors of the models say which folder cannot be read
        return []


# Tables, as Triton logs them


def draw_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None
) -> str:
    """Draw a table, whose cells may have several lines; longer ones are wrapped to the width."""
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
    backends: Iterable[LoadedBackend], options: ServerOptions, width: int | None = None
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


class ProgressLine:
    """On a terminal, one line that is overwritten; otherwise lines of the log, when requested."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = is_terminal(stream)
        self._progress: LoadProgress | None = None

    def update(self, progress: LoadProgress) -> None:
        """Show the new progress."""
        self.hide()
        self._progress = progress
        self.show()

    def hide(self) -> None:
        """Erase the line before something else is written."""
        if self._is_terminal and self._progress is not None:
            self._stream.write(_HIDE)
            self._stream.flush()

    def show(self) -> None:
        """Write the line again."""
        if self._is_terminal and self._progress is not None:
            finished, total, names = self._progress
            count = f"[{finished}/{total}]"
            line = f"{count} loading {', '.join(names)}"
            width = width_of(self._stream) or len(line)
            line = line if len(line) < width else line[: width - 2] + "…"
            if has_colours(self._stream):
                line = paint(count, Colour.CYAN) + line[len(count) :]
            self._stream.write(line)
            self._stream.flush()

    def end(self) -> None:
        """Erase the line for good."""
        self.hide()
        self._progress = None

    def log(self, elapsed_s: float) -> None:
        """Log which models are still being loaded, unless the terminal shows it."""
        if not self._is_terminal and self._progress is not None:
            finished, total, names = self._progress
            logger.info(
                "Loaded %d of %d models in %.0f seconds, waiting for: %s",
                finished,
                total,
                elapsed_s,
                ", ".join(names),
            )
