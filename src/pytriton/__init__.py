# SPDX-License-Identifier: Apache-2.0
"""pytriton: serve Python functions over Triton's HTTP and gRPC protocols."""
