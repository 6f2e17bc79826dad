# SPDX-License-Identifier: Apache-2.0
"""Lets a test give a decorated callable its context without a server."""

from pytriton.decorators.context import inject_triton_context as _inject_triton_context

__all__ = ["_inject_triton_context"]
