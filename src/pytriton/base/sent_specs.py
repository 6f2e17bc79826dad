# SPDX-License-Identifier: Apache-2.0
"""Specifications of models as they are sent to other processes of the server."""

from __future__ import annotations

from typing import Any

import msgspec

from pytriton.base import dtypes
from pytriton.base.model_spec import ModelSpec


def _encode_other(value: Any) -> int:
    assert isinstance(value, dtypes.DataType), f"expected a datatype, got {value!r}"
    return value.number


def _decode_other(kind: type, value: Any) -> dtypes.DataType:
    assert kind is dtypes.DataType, f"expected a datatype, got {kind}"
    return dtypes.BY_NUMBER[value]


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other)
_decoder = msgspec.msgpack.Decoder(ModelSpec, dec_hook=_decode_other)


def encode_spec(spec: ModelSpec) -> bytes:
    return _encoder.encode(spec)


def decode_spec(content: bytes) -> ModelSpec:
    """Returns the specification that `encode_spec` encoded."""
    return _decoder.decode(content)
