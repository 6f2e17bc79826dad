# SPDX-License-Identifier: Apache-2.0
"""Loads of signed models: what is refused, and that what was verified is what is loaded."""

from __future__ import annotations

import json

import pytest

from pytriton.serving.repository.signing.signers import Signers, SigningSettings
from pytriton.serving.repository.signing.verification import verify
from pytriton.serving.repository.signing.verifier import SignatureVerifier
from tests.e2e.waiting import eventually
from tests.repository.ensemble_files import ensemble_config
from tests.repository.scene import ALL_VERSIONS, CODE, CONFIG, write_model
from tests.signing.authorities import KeySigner


@pytest.fixture(autouse=True)
def verify_here(monkeypatch):
    """Verify in the test's own process, which has the package; tests of servers start another."""
    monkeypatch.setattr(SignatureVerifier, "_ask", lambda _, question: verify(question))


@pytest.fixture
def signer(tmp_path):
    return KeySigner(tmp_path)


@pytest.fixture
def strict(scene, signer):
    """Makes scenes that require signatures by `signer`."""
    signing = SigningSettings(is_required=True, signers=Signers(keys=(str(signer.public),)))
    return lambda **settings: scene(signing=signing, **settings)


def agent(**parameters):
    texts = [f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items()]
    return f'model_repository_agents {{ agents [ {{ name: "signature" {" ".join(texts)} }} ] }}\n'


def test_signed_model_is_loaded_from_its_copy(strict, repository, signer):
    folder = write_model(repository, config=ALL_VERSIONS, versions=("1", "2"))
    signer.sign(folder)
    it = strict()
    it.load()

    plans = [version.plan for version in it.loader.loaded]
    assert sorted(plan.version for plan in plans) == [1, 2]
    for plan in plans:
        assert not plan.model_directory.is_relative_to(repository)
        assert plan.version_directory.parent == plan.model_directory


def test_what_changes_between_check_and_load_is_not_loaded(strict, repository, signer):
    folder = write_model(repository)
    original = (folder / "1" / "model.py").read_text()
    signer.sign(folder)
    it = strict()
    loaded = []

    async def change_first(plan):
        (folder / "1" / "model.py").write_text("evil")
        (folder / "1" / "evil.py").write_text("evil")
        loaded.extend(path.name for path in plan.version_directory.iterdir())
        loaded.append((plan.version_directory / "model.py").read_text())

    it.loader.on_load = change_first
    it.load()

    assert loaded == ["model.py", original]


def test_copy_is_removed_after_the_model_was_unloaded(strict, repository, signer):
    signer.sign(write_model(repository))
    it = strict()
    it.load()
    (version,) = it.loader.loaded
    assert version.plan.model_directory.is_dir()
    it.unload()

    it.until(lambda: version.is_retired)
    assert eventually(lambda: not version.plan.model_directory.exists())


def test_model_without_a_signature_is_refused_where_it_is_required(strict, repository, signer):
    write_model(repository)
    it = strict()
    error = it.refusal()

    assert error.message == (
        "failed to load 'm', failed to poll from model repository: expected a valid signature by "
        f"the key '{signer.public}' in 'model.sig', got no such file: No such file or directory"
    )
    assert it.loader.asked == []
    assert [row.reason for row in it.rows()] == [
        "Invalid argument: " + error.message.partition("repository: ")[2]
    ]


def test_changed_model_is_refused_and_the_old_one_stays(strict, repository, signer):
    folder = write_model(repository)
    signer.sign(folder)
    it = strict()
    it.load()
    (folder / "1" / "model.py").write_text("evil")

    assert "differs from what was signed: Hash mismatch for '1/model.py'" in it.refusal().message
    assert it.engine.is_model_ready("m")
    assert len(it.loader.loaded) == 1


def test_poll_verifies_what_has_changed(strict, repository, signer):
    folder = write_model(repository)
    signer.sign(folder)
    it = strict(mode="poll", poll_interval_s=3600.0)
    it.run(it.models.start())
    (folder / "1" / "model.py").write_text(CODE + "# the next one, not signed yet")
    it.run(it.models.poll_once())

    assert len(it.loader.loaded) == 1
    assert it.engine.is_model_ready("m")
    signer.sign(folder)
    it.run(it.models.poll_once())
    newest = it.loader.loaded[-1].plan
    assert len(it.loader.loaded) == 2
    assert "the next one" in (newest.version_directory / "model.py").read_text()


def test_ensemble_with_a_step_that_is_not_signed_is_refused(strict, repository, signer):
    write_model(repository, "step")
    ensemble = write_model(repository, "e", ensemble_config("step"), versions=())
    (ensemble / "1").mkdir()
    signer.sign(ensemble)
    it = strict()

    assert "models that are not available or ambiguous: step" in it.refusal("e").message
    assert it.loader.asked == []


def test_configuration_of_a_client_is_refused_where_signatures_are_required(
    strict, repository, signer
):
    signer.sign(write_model(repository))
    it = strict()

    error = it.refusal(config='{"backend": "python"}')
    assert "expected no configuration in the load request" in error.message
    assert it.loader.asked == []


def sent(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("config", ["{}", '{"backend": "python"}'])
def test_files_of_a_client_are_loaded_if_they_are_signed(strict, tmp_path, signer, config):
    folder = write_model(tmp_path / "sent")
    signer.sign(folder)
    it = strict()
    it.load("m", config, sent(folder))

    assert it.loader.asked == [("m", 1)]


def test_files_of_a_client_without_a_valid_signature_are_refused(strict, tmp_path, signer):
    folder = write_model(tmp_path / "sent")
    signer.sign(folder)
    files = sent(folder)
    it = strict()

    unsigned = {path: content for path, content in files.items() if path != "model.sig"}
    assert "got no such file" in it.refusal("m", "{}", unsigned).message
    changed = {**files, "1/model.py": b"evil"}
    assert "Hash mismatch for '1/model.py'" in it.refusal("m", "{}", changed).message
    error = it.refusal("m", '{"backend": "onnxruntime"}', files)
    assert "to be {} or that of the signed 'config.pbtxt'" in error.message
    assert it.loader.asked == []


def test_signed_model_may_not_name_an_environment_outside(strict, repository, signer):
    parameter = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }'
    outside = write_model(repository, "outside", CONFIG + parameter % "/opt/env.tar.gz")
    upward = write_model(
        repository, "upward", CONFIG + parameter % "$$TRITON_MODEL_DIRECTORY/../env"
    )
    inside = write_model(
        repository, "inside", CONFIG + parameter % "$$TRITON_MODEL_DIRECTORY/env.tar.gz"
    )
    library = write_model(
        repository, "library", CONFIG + 'model_operations { op_library_filename: "/opt/x.so" }'
    )
    for folder in (outside, upward, inside, library):
        signer.sign(folder)
    it = strict()

    assert "got '/opt/env.tar.gz', which is not signed" in it.refusal("outside").message
    assert "which is not signed" in it.refusal("upward").message
    assert "got '/opt/x.so', which is not signed" in it.refusal("library").message
    it.load("inside")
    assert it.loader.asked == [("inside", 1)]


def test_name_in_the_signed_configuration_holds_the_model_in_its_place(strict, repository, signer):
    folder = write_model(repository, "m", CONFIG + 'name: "m"')
    signer.sign(folder)
    folder.rename(repository / "other")

    assert "unexpected directory name 'other' for model 'm'" in strict().refusal("other").message


def test_registered_model_may_have_another_name(strict, tmp_path, signer):
    folder = write_model(tmp_path / "added", "m", CONFIG + 'name: "m"')
    signer.sign(folder)
    it = strict()
    it.run(it.models.registrations.register("other", str(folder)))

    assert it.loader.asked == [("other", 1)]


# The agent, on a server that does not require signatures


def test_agent_verifies_its_model_alone(scene, repository, signer):
    write_model(repository, "free")
    folder = write_model(repository, config=CONFIG + agent(key=signer.public))
    signer.sign(folder)
    it = scene()
    it.load("free")
    it.load()

    free, signed = (version.plan for version in it.loader.loaded)
    assert free.model_directory == repository / "free"
    assert not signed.model_directory.is_relative_to(repository)
    (folder / "1" / "evil.py").write_text("")
    assert "Extra files found in model 'm': 1/evil.py" in it.refusal().message


def test_agent_may_have_a_signature_elsewhere_in_the_folder(scene, repository, signer):
    folder = write_model(
        repository, config=CONFIG + agent(key=signer.public, signature="meta/own.sig")
    )
    (folder / "meta").mkdir()
    signer.sign(folder, "meta/own.sig")
    it = scene()
    it.load()

    assert it.loader.asked == [("m", 1)]


def test_signers_of_an_agent_do_not_replace_those_that_the_server_requires(
    strict, repository, tmp_path
):
    own = KeySigner(tmp_path)
    folder = write_model(repository, config=CONFIG + agent(key=own.public))
    own.sign(folder)
    it = strict()

    assert "Key mismatch" in it.refusal().message
    assert it.loader.asked == []


def test_signature_agent_is_run_on_files_of_a_client(scene, tmp_path, signer):
    folder = write_model(tmp_path / "sent", config=None)
    signer.sign(folder)
    parameters = {"key": str(signer.public)}
    agents = {"agents": [{"name": "signature", "parameters": parameters}]}
    config = json.dumps({"backend": "python", "model_repository_agents": agents})
    it = scene()
    it.load("m", config, sent(folder))

    assert it.loader.asked == [("m", 1)]
    changed = {**sent(folder), "1/model.py": b"evil"}
    assert "Hash mismatch" in it.refusal("m", config, changed).message
