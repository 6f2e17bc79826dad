# SPDX-License-Identifier: Apache-2.0
"""HTTP and gRPC connections of clients: in the server's process, or in processes of their own."""
