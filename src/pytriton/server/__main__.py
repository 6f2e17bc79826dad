# SPDX-License-Identifier: Apache-2.0
"""`python -m pytriton.server`: the `tritonserver` command."""

from __future__ import annotations

import sys

from pytriton.server.tritonserver import main

if __name__ == "__main__":
    sys.exit(main())
