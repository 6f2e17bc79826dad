# SPDX-License-Identifier: Apache-2.0
"""The user's side of `Triton` and `RemoteTriton`: starting a server, and the sockets to it."""
