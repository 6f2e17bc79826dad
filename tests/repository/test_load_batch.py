# SPDX-License-Identifier: Apache-2.0
"""Work on models that is given up."""

from __future__ import annotations

import asyncio
import gc

from pytriton.base.errors import UnavailableError
from pytriton.serving.repository.model_set import run_in_order


def test_work_that_is_given_up_and_fails_leaves_no_error_to_nobody(caplog):
    begun = []

    async def work(name):
        begun.append(name)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise UnavailableError("it was given up") from None

    async def scenario():
        running = asyncio.ensure_future(run_in_order({"a": (), "b": (), "c": ("a",)}, work))
        while len(begun) < 2:  # noqa: ASYNC110  there is no event for that
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])

        assert running.cancelled()

    gc.collect()
    caplog.clear()  # of what other tests have left
    asyncio.run(scenario())
    gc.collect()

    assert not caplog.records
