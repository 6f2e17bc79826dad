# SPDX-License-Identifier: Apache-2.0
"""`python -m pytriton.server`: the `tritonserver` command."""

from __future__ import annotations

from pytriton.serving.server.tritonserver import command

if __name__ == "__main__":
    command()
