# SPDX-License-Identifier: Apache-2.0
"""Lets a test set the context of a decorated callable without a server."""

from pytriton.decorators.context import inject_triton_context as _inject_triton_context

__all__ = ["_inject_triton_context"]
