# SPDX-License-Identifier: Apache-2.0
"""Starts a server of repositories: loads the models, logs the tables, opens the ports."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytriton.base.errors import ServerError
from pytriton.base.model_spec import identifier_of
from pytriton.base.request_ids import visible
from pytriton.serving.engine.model_state import ModelState
from pytriton.serving.repository.reading.source import AGENTS
from pytriton.serving.server.command.startup_hints import port_hint, repository_hints
from pytriton.serving.server.command.startup_tables import (
    agent_table,
    backend_table,
    model_table,
    option_table,
)
from pytriton.serving.server.options.repository_options import ALL_MODELS
from pytriton.serving.server.process.logs import log_table

if TYPE_CHECKING:
    from pytriton.serving.engine.client import IndexEntry
    from pytriton.serving.server.command.serving_protocol import OpenPorts, Serving
    from pytriton.serving.server.command.startup_progress import ProgressLine
    from pytriton.serving.server.options.endpoints import Endpoint
    from pytriton.serving.server.options.server_options import ServerOptions

logger = logging.getLogger(__name__)

_REPORT_INTERVAL_S = 10.0
_CONTROL_API = "model-repository"
_MAX_FAILED_MODELS = 20
_ANY_ADDRESSES = ("0.0.0.0", "::")


class StartError(Exception):
    """The server cannot start; the text is printed last, and is empty if the log has it."""


def creation_error(error: ServerError) -> StartError:
    """Returns the error for a server that could not be created."""
    return StartError(f"error: creating server: {error.kind} - {error.message}")


def _known_models(serving: Serving, options: ServerOptions) -> list[IndexEntry]:
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


def _failed_models(models: Sequence[IndexEntry]) -> str:
    """Returns a line for each model that cannot be loaded, as tables are between it and its log."""
    failed = [each for each in models if each.reason and each.state != ModelState.READY.value]
    if not failed:
        return ""
    lines = [f"  {_failure_line(each)}" for each in failed[:_MAX_FAILED_MODELS]]
    more = len(failed) - len(lines)
    if more:
        lines.append(f"  and {more} more, which the table of models names")
    return "\n".join(["Models that cannot be loaded:", *lines, ""])


def _failure_line(entry: IndexEntry) -> str:
    name = identifier_of(entry.namespace, entry.name)
    version = f" version {entry.version}" if entry.version else ""
    cause, _, place = entry.reason.partition("\n\nAt:\n")
    where = f", at {place.strip().splitlines()[0]}" if place.strip() else ""
    return visible(f"{name}{version}: {cause.strip().splitlines()[0]}{where}")


async def start_up(
    serving: Serving,
    options: ServerOptions,
    progress: ProgressLine,
    width: int | None = None,
) -> OpenPorts:
    """Start a server and log what it serves.

    Args:
        serving: the server.
        options: its settings.
        progress: shows which models are being loaded.
        width: maximum number of columns of the tables, if any.

    Returns:
        The ports that clients may use.

    Raises:
        StartError: a port is taken, or a model cannot be loaded and `exit_on_error` is set.
    """
    failure = await _load(serving, progress)
    log_table(logger, agent_table(AGENTS, width))
    log_table(logger, backend_table(serving.backends(), options, width))
    models = _known_models(serving, options)
    log_table(logger, model_table(models, width))
    log_table(logger, option_table(options, width))
    if failure is not None:
        for hint in repository_hints(options.repository.paths):
            logger.error("%s", hint)
        if options.exit_on_error:
            raise StartError(f"{_failed_models(models)}{creation_error(failure)}")
        logger.error("%s: %s", failure.kind, failure.message)
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


async def _load(serving: Serving, progress: ProgressLine) -> ServerError | None:
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
    """Log the addresses of the server."""
    for name, port, endpoint in (
        ("GRPCInferenceService", ports.grpc, options.grpc),
        ("HTTPService", ports.http, options.http),
        ("Sagemaker HTTPService", ports.sagemaker, options.sagemaker),
        ("Vertex AI HTTPService", ports.vertex_ai, options.vertex_ai),
        ("Metrics Service", ports.metrics, options.metrics),
    ):
        if port:
            logger.info("Started %s at %s:%d", name, endpoint.address, port)
    if ports.metrics and options.page.allow:
        logger.info("The page is at %s", page_url(options.metrics.address, ports.metrics))


def page_url(address: str, port: int) -> str:
    """Returns the address of the page for a browser on this machine."""
    host = "localhost" if address in _ANY_ADDRESSES else address
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _warn_of_open_control(options: ServerOptions) -> None:
    """Warn if any client can load models: in explicit mode it can send files, that is, code."""
    if options.repository.model_control_mode != "explicit":
        return
    for endpoint, groups, flag in (
        (options.http, options.http_restricted, "http-restricted-api"),
        (options.sagemaker, options.http_restricted, "http-restricted-api"),
        (options.vertex_ai, options.http_restricted, "http-restricted-api"),
        (options.grpc, options.grpc_restricted, "grpc-restricted-protocol"),
    ):
        is_restricted = any(_CONTROL_API in group.apis for group in groups)
        if endpoint.allow and not is_restricted and not _is_loopback(endpoint):
            logger.warning(
                "Whoever reaches %s:%d may load models, and a model is code: "
                "restrict it with --%s=%s:<key>=<value>",
                endpoint.address,
                endpoint.port,
                flag,
                _CONTROL_API,
            )


def _is_loopback(endpoint: Endpoint) -> bool:
    try:
        return ipaddress.ip_address(endpoint.address).is_loopback
    except ValueError:  # a name
        return endpoint.address == "localhost"
