# SPDX-License-Identifier: Apache-2.0
"""`execute_notebook.py IN OUT`: runs a notebook in a kernel of its own and saves what it shows."""

import sys

import nbclient
import nbformat

TIMEOUT_S = 120

if __name__ == "__main__":
    notebook = nbformat.read(sys.argv[1], as_version=4)
    nbclient.NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3").execute()
    nbformat.write(notebook, sys.argv[2])
