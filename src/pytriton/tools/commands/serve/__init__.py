# SPDX-License-Identifier: Apache-2.0
"""`pytriton serve FILE.py`: serves the annotated functions of a file, and reloads it on change.

Without `--reload`, the file is imported in this process, which has the models. With it, this
process has only the server; a child imports the file and binds its models (`command.main`). When a
file has changed, a new child does the same, and its models replace those of the old child, which
finishes its requests and ends. If the new code fails, the old child goes on. So no port is ever
closed, and no module is left over from the code before.
"""
