# SPDX-License-Identifier: Apache-2.0
"""Codecs without I/O: JSON, protobuf, gRPC framing, HTTP/2, texts of endpoints."""
