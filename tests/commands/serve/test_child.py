# SPDX-License-Identifier: Apache-2.0
"""The process of `pytriton serve --reload` that has the models."""

from __future__ import annotations

from pytriton.base.announcement import Addresses
from pytriton.tools.commands.serve.options import read_options
from pytriton.tools.commands.serve.reloading import CodeProcess

CODE = """
import threading
threading.Thread(target=threading.Event().wait).start()
raise RuntimeError("no model")
"""


def test_thread_of_code_that_fails_does_not_keep_its_process(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(CODE)
    child = CodeProcess()
    child.start(read_options([str(path)]), Addresses("http://127.0.0.1:1", ""), colours=False)
    report = None
    while report is None:
        report = child.receive()

    assert "no model" in report.error
    assert child.exit_code() == 0
    child.end(0)
