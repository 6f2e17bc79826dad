# SPDX-License-Identifier: Apache-2.0
"""Entry point of the server process that `Triton` starts if its settings name a repository.

It is separate from `serving.server.main` so that other servers need not import repositories.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from pytriton.base.errors import ServerError
from pytriton.base.lazy_module import LazyModule, no_garbage_search

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    from pytriton.runtime.executor.python_process import StartedZygote
    from pytriton.serving.server import main as bound_main
    from pytriton.serving.server import serving as repository_serving
    from pytriton.serving.server import worker_zygote
    from pytriton.serving.server.command import startup
    from pytriton.serving.server.options.server_options import ServerOptions
    from pytriton.serving.server.process import logs
    from pytriton.serving.server.serving import RepositoryServing
else:  # workers are forked without the server's modules
    worker_zygote = LazyModule("pytriton.serving.server.worker_zygote")
    bound_main = LazyModule("pytriton.serving.server.main")
    repository_serving = LazyModule("pytriton.serving.server.serving")
    startup = LazyModule("pytriton.serving.server.command.startup")
    logs = LazyModule("pytriton.serving.server.process.logs")

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a server of the repository's models and of those that the parent binds."""
    with no_garbage_search():
        workers = worker_zygote.fork_worker_zygote()
        serve, build = bound_main.main, repository_serving.build
    serve(arguments, partial(start_repository_serving, partial(build, workers=workers)))


async def start_repository_serving(
    build: Callable[..., Awaitable[RepositoryServing]],
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
        logs.log_table(logger, startup.model_table(serving.index(), None))


if __name__ == "__main__":
    main()
