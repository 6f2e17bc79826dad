# SPDX-License-Identifier: Apache-2.0
"""The script of a user who binds the functions of the workload and serves them."""

from __future__ import annotations

import json
import pathlib
import signal
import sys

from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests.workload.models import TRITON_SETTINGS, bind_models

_PATHS = ("log_file", "access_log")


def main(settings_text: str, token: str) -> None:
    settings = json.loads(settings_text)
    for name in _PATHS:
        settings[name] = pathlib.Path(settings[name])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end in order, as with Ctrl-C
    config = TritonConfig(**{**TRITON_SETTINGS, **settings})
    with Triton(config=config, security_config=TritonSecurityConfig(access_token=token)) as triton:
        bind_models(triton)
        triton.serve()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
