# SPDX-License-Identifier: Apache-2.0
"""Lets the processes of a model's instances share its weights, as pages of the model's file.

Archives of torch have weights uncompressed. So a weight can be a private mapping of its part of the
file: its pages are in memory once, and a process that writes to one gets a copy of its own.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.runtime.framework_backends.pytorch.library import BackendLog, Torch

_MIN_BYTES = 64 << 10  # less is not worth a mapping
_LOCAL_HEADER_BYTES = 30  # of a zip file: before a member's name and extra field
_FOLDERS = ("data", "constants")
_PURGE_DELAY_S = 0.15
_PURGE_BYTES = 16 << 20


def share(torch: Torch, module: Any, path: Path, device: Any, model: str, log: BackendLog) -> int:
    """Replace weights of a TorchScript module on the CPU by mappings of its file.

    Returns:
        The number of bytes that are shared now.
    """
    if device is not None and device.type != "cpu":
        log.write_warning(
            f"model '{model}': ENABLE_WEIGHT_SHARING has no effect on {device}, where each "
            "instance has weights of its own"
        )
        return 0
    shared = _replace(torch, module, _parts(path))
    if shared:
        _give_back_memory(torch)
    log.write_info(f"model '{model}': {shared} bytes of its weights are shared by its instances")
    return shared


def _replace(torch: Torch, module: Any, parts: dict[int, list[NDArray[np.uint8]]]) -> int:
    """Replace weights by equal parts of the file; returns the number of their bytes."""
    replaced: dict[int, Any] = {}  # storages, by the address of the one that they replace
    shared = 0
    for tensor in _weights(module):
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in replaced:
            replaced[address] = _mapped(torch, storage, parts)
            shared += storage.nbytes() if replaced[address] is not None else 0
        if replaced[address] is not None:
            tensor.set_(replaced[address], tensor.storage_offset(), tensor.size(), tensor.stride())
    return shared


def _give_back_memory(torch: Torch) -> None:
    """Let the allocator give back what the weights had.

    The one of torch on ARM does that at a large allocation which comes a tenth of a second later.
    Three instances with 256 MiB of weights kept 768 MiB without this.
    """
    time.sleep(_PURGE_DELAY_S)
    torch.empty(_PURGE_BYTES, dtype=torch.uint8)


def _weights(module: Any) -> Iterator[Any]:
    yield from module.parameters()
    yield from module.buffers()
    # A frozen module has its weights as constants of its code.
    yield from module.code_with_constants[1].const_mapping.values()


def _parts(path: Path) -> dict[int, list[NDArray[np.uint8]]]:
    """Returns the parts of a file that may be weights, as private mappings, by their size."""
    mapping = np.memmap(path, np.uint8, mode="c")
    parts: dict[int, list[NDArray[np.uint8]]] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            folders = member.filename.split("/")[:-1]
            if (
                member.compress_type != zipfile.ZIP_STORED
                or member.file_size < _MIN_BYTES
                or not any(folder in _FOLDERS for folder in folders)
            ):
                continue
            header = member.header_offset
            lengths = mapping[header + 26 : header + _LOCAL_HEADER_BYTES].view("<u2")
            start = header + _LOCAL_HEADER_BYTES + int(lengths.sum())
            part = mapping[start : start + member.file_size]
            parts.setdefault(member.file_size, []).append(part)
    return parts


def _mapped(torch: Torch, storage: Any, parts: dict[int, list[NDArray[np.uint8]]]) -> Any:
    """Returns the storage of the part with the same bytes; None if there is none."""
    candidates = parts.get(storage.nbytes(), [])
    if not candidates:
        return None
    content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    for part in candidates:
        if np.array_equal(part, content):
            return torch.from_numpy(part).untyped_storage()
    return None
