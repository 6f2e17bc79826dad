# SPDX-License-Identifier: Apache-2.0
"""Bytes between host and GPU, counted by process and by thread."""

from __future__ import annotations

import threading

import pytest

from pytriton.base import device_copies
from pytriton.base.device_copies import CopyMeter


@pytest.fixture(autouse=True)
def counts(monkeypatch):
    monkeypatch.setattr(device_copies, "_by_thread", {})


def in_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def test_meter_tells_what_was_copied_since_it_was_asked_last():
    device_copies.add_to_gpu(100)
    meter = CopyMeter()
    device_copies.add_to_gpu(3)
    in_thread(lambda: device_copies.add_to_host(4))

    assert meter.take() == (3, 4)
    assert meter.take() == (0, 0)


def test_meter_of_a_thread_leaves_out_the_others():
    meter = CopyMeter(threading.get_ident())
    in_thread(lambda: device_copies.add_to_gpu(1))
    device_copies.add_to_host(2)

    assert meter.take() == (0, 2)


def test_process_without_copies_has_nothing_to_add_up():
    assert CopyMeter().take() is device_copies.NOTHING
