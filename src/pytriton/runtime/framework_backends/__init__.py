# SPDX-License-Identifier: Apache-2.0
"""The backends of this package: a folder each, whose `model.py` runs the models of the backend."""
