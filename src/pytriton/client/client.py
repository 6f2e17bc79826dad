# SPDX-License-Identifier: Apache-2.0
"""All clients under their public names; each is defined in its own module."""

from __future__ import annotations

from pytriton.client.asyncio_client import AsyncioDecoupledModelClient, AsyncioModelClient
from pytriton.client.base import DEFAULT_INFERENCE_TIMEOUT_S, BaseModelClient
from pytriton.client.decoupled_client import DecoupledModelClient
from pytriton.client.futures_client import FuturesModelClient
from pytriton.client.model_client import ModelClient

__all__ = [
    "DEFAULT_INFERENCE_TIMEOUT_S",
    "AsyncioDecoupledModelClient",
    "AsyncioModelClient",
    "BaseModelClient",
    "DecoupledModelClient",
    "FuturesModelClient",
    "ModelClient",
]
