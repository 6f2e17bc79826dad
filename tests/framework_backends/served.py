# SPDX-License-Identifier: Apache-2.0
"""Clients of a server with models of frameworks, over either protocol."""

from __future__ import annotations

import contextlib

import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from pytriton.base.dtypes import from_numpy


class Client:
    def __init__(self, library, port):
        self._library = library
        self._client = library.InferenceServerClient(f"127.0.0.1:{port}")

    def infer(self, name, arrays, **settings):
        tensors = []
        for key, array in arrays.items():
            each = self._library.InferInput(key, array.shape, from_numpy(array.dtype).name)
            each.set_data_from_numpy(array)
            tensors.append(each)
        return self._client.infer(name, tensors, **settings)

    def close(self):
        self._client.close()


def open_client(server, protocol="http"):
    library, port = triton_http, server.http_port
    if protocol == "grpc":
        library, port = triton_grpc, server.grpc_port
    return contextlib.closing(Client(library, port))
