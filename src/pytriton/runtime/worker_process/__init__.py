# SPDX-License-Identifier: Apache-2.0
"""Worker processes: how they are started, and which code runs the model in them."""
