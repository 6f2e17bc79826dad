# SPDX-License-Identifier: Apache-2.0
"""Helpers to check an installation, and to test programs that serve models."""

CHECKS = {
    "check": "whether serving works here: env, then examples",
    "env": "report on this machine, its Python and its packages",
    "example-add-sub": "serve a model from this process and ask it",
    "example-add-sub-script": "the same with the server in a script",
    "example-repository": "the same with tritonserver and a model.py",
    "examples": "all examples",
}
