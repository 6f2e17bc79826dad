# SPDX-License-Identifier: Apache-2.0
"""Writes the OpenAPI document of the HTTP port, with the paths of operations that it describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.protocol.json_text import dump_json
from pytriton.protocol.openapi import DescribedPath, openapi_document
from pytriton.serving.server.api.documents import package_version
from pytriton.serving.server.operations.operation import POST
from pytriton.serving.server.operations.table import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytriton.base.model_spec import ModelSpec
    from pytriton.serving.server.operations.operation import Operation


def openapi_text(specs: Iterable[ModelSpec], url: str, headers_of_apis: Mapping[str, str]) -> bytes:
    """Returns the document for models that are ready, each of which takes half a millisecond."""
    paths = described_paths(OPERATIONS)
    return dump_json(openapi_document(specs, url, package_version(), headers_of_apis, paths))


def described_paths(operations: Iterable[Operation]) -> list[DescribedPath]:
    """Returns the paths of operations that have a summary, without what may be left out of them."""
    return [
        DescribedPath(
            path.plain,
            "post" if each.http.methods == POST else "get",
            *(each.api, path.id, path.summary, path.schema),
        )
        for each in operations
        if each.http is not None
        for path in each.http.paths
        if path.summary
    ]
