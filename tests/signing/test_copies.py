# SPDX-License-Identifier: Apache-2.0
"""Private copies of models: what they have, and what cannot be part of a signed model."""

from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError, UnavailableError
from pytriton.serving.repository.reading.layout import ModelPlace, RenamedPlace
from pytriton.serving.repository.signing import verifier as module
from pytriton.serving.repository.signing.signers import Signers, SigningSettings
from pytriton.serving.repository.signing.verification import Answer
from pytriton.serving.repository.signing.verifier import (
    MAX_PROCESSES,
    SignatureVerifier,
    copy_folder,
)
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.signing.authorities import KeySigner


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "models" / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("code")
    (folder / "config.pbtxt").write_text("config")
    return folder


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    return folder


@pytest.fixture
def verifier():
    made = SignatureVerifier(SigningSettings())
    yield made
    made.close()


def refusal(model, target, kind=InvalidArgumentError):
    with pytest.raises(kind) as caught:
        copy_folder(model, target)
    return caught.value.message


def test_copy_has_files_and_empty_folders(model, target):
    (model / "2").mkdir()
    (model / "run").write_text("#!")
    (model / "run").chmod(0o755)
    copy_folder(model, target)

    assert (target / "1" / "model.py").read_text() == "code"
    assert (target / "2").is_dir()
    assert stat.S_IMODE((target / "config.pbtxt").stat().st_mode) == 0o400
    assert stat.S_IMODE((target / "run").stat().st_mode) == 0o500


def test_large_file_is_copied_as_it_is(model, target):
    content = os.urandom(3 * module._CHUNK_BYTES + 1)
    (model / "weights").write_bytes(content)
    copy_folder(model, target)

    assert (target / "weights").read_bytes() == content


def test_link_to_a_file_of_the_model_becomes_the_file(model, target):
    (model / "2").mkdir()
    (model / "2" / "model.py").symlink_to("../1/model.py")
    copy_folder(model, target)

    assert (target / "2" / "model.py").read_text() == "code"
    assert not (target / "2" / "model.py").is_symlink()


def test_model_may_be_a_link_itself(model, target, tmp_path):
    (tmp_path / "link").symlink_to(model)
    copy_folder(tmp_path / "link", target)

    assert (target / "config.pbtxt").read_text() == "config"


@pytest.mark.parametrize("where", ["/etc/hostname", "../../other/secret", "../../m2/secret"])
def test_link_out_of_the_model_is_refused(model, target, where):
    for name in ("other", "m2"):
        (model.parent / name).mkdir()
        (model.parent / name / "secret").write_text("secret")
    (model / "1" / "data").symlink_to(where)

    assert "to stay in it, got '1/data', which leads to" in refusal(model, target)


def test_link_to_a_folder_is_refused(model, target):
    (model / "2").symlink_to("1")

    assert "to lead to files, got '2', which leads to the folder '1'" in refusal(model, target)


def test_link_to_nothing_is_an_error(model, target):
    (model / "gone").symlink_to("nothing")

    assert "No such file or directory" in refusal(model, target, InternalError)


def test_pipe_is_refused_without_waiting(model, target):
    os.mkfifo(model / "pipe")

    assert "got 'pipe', which is neither" in refusal(model, target)


def test_size_is_bounded_by_the_space_that_is_free(model, target, monkeypatch):
    free = module.shutil.disk_usage(target)._replace(free=5)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: free)

    assert "more bytes than are free in" in refusal(model, target, InternalError)


def test_number_of_files_and_depth_are_bounded(model, target, monkeypatch):
    monkeypatch.setattr(module, "MAX_FILES", 2)

    assert "expected at most 2 files" in refusal(model, target)
    monkeypatch.setattr(module, "MAX_FILES", 100)
    monkeypatch.setattr(module, "MAX_DEPTH", 0)
    assert "expected at most 0 folders in each other" in refusal(model, target.parent / "models")


def test_files_that_the_signer_left_out_are_not_in_the_copy(model, verifier, tmp_path, caplog):
    caplog.set_level("INFO")
    signer = KeySigner(tmp_path)
    (model / ".gitignore").write_text("ignored by the signer")
    signer.sign(model)
    place = verifier.private_copy(ModelPlace(model.parent, model))
    verifier.verify("m", place, Signers(keys=(str(signer.public),)))

    found = sorted(path.name for path in place.directory.rglob("*") if path.is_file())
    assert found == ["config.pbtxt", "model.py", "model.sig"]
    assert f"model 'm' is valid; it was signed by the key '{signer.public}'" in caplog.text


def test_copy_is_private_and_gone_after_it_was_given_up(model, verifier):
    place = verifier.private_copy(RenamedPlace(model.parent, model))

    assert place.is_private
    assert place.is_renamed
    assert stat.S_IMODE(place.directory.parent.stat().st_mode) == 0o700
    assert place.explain(f"no {place.directory}/x") == f"no {model}/x"
    assert verifier.private_copy(place) is place
    place.abandon()
    assert eventually(lambda: not place.directory.exists())


def test_missing_signature_names_what_was_expected(model, verifier):
    place = verifier.private_copy(ModelPlace(model.parent, model))
    with pytest.raises(InvalidArgumentError) as caught:
        verifier.verify("m", place, Signers(keys=("/k.pub",)))

    assert caught.value.message == (
        "expected a valid signature by the key '/k.pub' in 'model.sig', got no such file: "
        "No such file or directory"
    )


@pytest.mark.parametrize("signature", ["../model.sig", "/model.sig"])
def test_signature_has_to_be_in_the_folder(model, verifier, signature):
    place = verifier.private_copy(ModelPlace(model.parent, model))
    with pytest.raises(InvalidArgumentError) as caught:
        verifier.verify("m", place, Signers(keys=("/k.pub",)), signature)

    assert f"got '{signature}'" in caught.value.message


def test_nothing_is_verified_by_a_server_that_stops(model, verifier):
    place = verifier.private_copy(ModelPlace(model.parent, model))
    (place.directory / "model.sig").write_text("{}")
    verifier.stop()

    with pytest.raises(UnavailableError):
        verifier.private_copy(ModelPlace(model.parent, model))
    with pytest.raises(UnavailableError):
        verifier.verify("m", place, Signers(keys=("/k.pub",)))


def test_missing_package_is_named(model, verifier, monkeypatch):
    place = verifier.private_copy(ModelPlace(model.parent, model))
    (place.directory / "model.sig").write_text("{}")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InternalError) as caught:
        verifier.verify("m", place, Signers(keys=("/k.pub",)))

    assert "pip install 'pytriton[signing]'" in caught.value.message


def test_processes_that_verify_are_bounded(model, verifier, monkeypatch):
    places = [verifier.private_copy(ModelPlace(model.parent, model)) for _ in range(6)]
    for place in places:
        (place.directory / "model.sig").write_text("{}")
    waiting, most, go = [], [], threading.Event()

    def ask(question):
        waiting.append(question)
        most.append(len(waiting))
        go.wait(DEADLINE_S)
        waiting.remove(question)
        return Answer()

    monkeypatch.setattr(verifier, "_ask_process", ask)
    with ThreadPoolExecutor(6) as pool:
        signers = Signers(keys=("/k.pub",))
        loads = [pool.submit(verifier.verify, "m", place, signers) for place in places]
        assert eventually(lambda: len(waiting) == MAX_PROCESSES)
        go.set()
        for load in loads:
            load.result()

    assert max(most) <= MAX_PROCESSES
    assert len(most) == 6
