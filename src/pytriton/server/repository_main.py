# SPDX-License-Identifier: Apache-2.0
"""Entry point of the server process that `Triton` starts if its settings name a repository.

It is separate from `pytriton.server.main` so that other servers need not import repositories.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pytriton.errors import ServerError
from pytriton.server import main as bound_main
from pytriton.server.command.startup_tables import model_table
from pytriton.server.process.logs import log_table
from pytriton.server.serving import RepositoryServing, build

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.executor.python_process import StartedZygote
    from pytriton.server.options.server_options import ServerOptions

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a server of the repository's models and of those that the parent binds."""
    bound_main.main(arguments, start_repository_serving)


async def start_repository_serving(
    options: ServerOptions,
    loop: asyncio.AbstractEventLoop,
    zygote: StartedZygote | None = None,
) -> RepositoryServing:
    """Load the repository's models, then open the ports.

    Raises:
        ServerError: A port is taken, or a model cannot be loaded and `exit_on_error` is set.
    """
    serving = await build(options, loop, zygote, awaits_bound_models=True)
    try:
        await _load(serving, options)
        await serving.open_ports()
    except BaseException:  # also if this start is cancelled
        await serving.abandon()
        raise
    return serving


async def _load(serving: RepositoryServing, options: ServerOptions) -> None:
    try:
        await serving.load(lambda _progress: None)
    except ServerError as error:
        if options.exit_on_error:
            raise
        logger.error("%s: %s", error.kind, error.message)  # noqa: TRY400  the message is enough
    finally:
        log_table(logger, model_table(serving.index(), None))


if __name__ == "__main__":
    main()
