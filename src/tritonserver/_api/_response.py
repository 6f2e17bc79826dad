# SPDX-License-Identifier: Apache-2.0
"""The responses of requests: Triton's OpenAI front end annotates its functions with them."""

from pytriton.inprocess import AsyncResponseIterator, InferenceResponse, ResponseIterator

__all__ = ["AsyncResponseIterator", "InferenceResponse", "ResponseIterator"]
