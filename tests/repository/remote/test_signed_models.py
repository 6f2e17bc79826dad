# SPDX-License-Identifier: Apache-2.0
"""Signed models in object stores: the copy that was downloaded is the one that is verified."""

from __future__ import annotations

import pytest

from pytriton.serving.repository.signing.signers import Signers, SigningSettings
from pytriton.serving.repository.signing.verification import verify
from pytriton.serving.repository.signing.verifier import SignatureVerifier
from tests.repository.scene import CONFIG, write_model
from tests.signing.authorities import KeySigner


@pytest.fixture(autouse=True)
def verify_here(monkeypatch):
    """Verify in the test's own process, which has the package; tests of servers start another."""
    monkeypatch.setattr(SignatureVerifier, "_ask", lambda _, question: verify(question))


@pytest.fixture
def strict(remote, objects, tmp_path):
    """A scene that requires signatures; its model `m` has two versions, and is signed."""
    signer = KeySigner(tmp_path)
    folder = write_model(tmp_path / "made", versions=("1", "2"))
    signer.sign(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            objects.put(f"m/{path.relative_to(folder).as_posix()}", path.read_bytes())
    signers = Signers(keys=(str(signer.public),))
    return remote(mode="explicit", signing=SigningSettings(is_required=True, signers=signers))


def test_all_versions_are_downloaded_and_verified_in_place(strict, objects, mount):
    strict.run(strict.models.start())
    strict.load()

    assert {"m/1/model.py", "m/2/model.py", "m/model.sig"} <= set(objects.downloads)
    assert strict.loader.asked == [("m", 2)]
    assert strict.loader.loaded[0].plan.model_directory.is_relative_to(mount)


def test_changed_object_is_refused(strict, objects):
    objects.put("m/1/model.py", "evil")
    strict.run(strict.models.start())

    assert "Hash mismatch for '1/model.py'" in strict.refusal().message
    assert strict.loader.asked == []


def test_agent_of_a_model_in_a_store_is_run(remote, objects, tmp_path):
    signer = KeySigner(tmp_path)
    agents = (
        'model_repository_agents { agents [{ name: "signature" '
        f'parameters {{ key: "key" value: "{signer.public}" }} }}] }}'
    )
    folder = write_model(tmp_path / "made", config=CONFIG + agents)
    signer.sign(folder)
    for path in ("config.pbtxt", "1/model.py", "model.sig"):
        objects.put(f"m/{path}", (folder / path).read_bytes())
    objects.put("m/1/extra.py", "evil")
    it = remote(mode="explicit")
    it.run(it.models.start())

    assert "Extra files found in model 'm': 1/extra.py" in it.refusal().message
