"""References to runs: found, stored, part of the hash, and inherited from."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments import compose
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.experiment.parts import located
from llmrl.experiment.run_lookup import folder_of, parsed, run_folder_of
from llmrl.experiment.run_references import needed, resolved, with_digests, without_digests
from llmrl.run.config_hash import RESOLVED, config_hash
from run_folders import write_run

ALONE = ("env=escape_room", "principal=none")


@pytest.fixture
def outputs(tmp_path):
    """Three experiments: `pre` at two lengths, the shorter at two seeds, and one that failed."""
    root = tmp_path / "outputs"
    folders = {}
    for seed in (0, 1):
        folders["short", seed] = write_run(root, "pre", ["learn.env_steps=1000"], seed)
    folders["long", 0] = write_run(root, "pre", ["learn.env_steps=2000"], 0)
    folders["failed", 0] = write_run(root, "broken", [], 0, error=ConfigError("no weights"))
    return root, folders


def digest(folder: Path) -> str:
    return folder.parent.name[-8:]


@functools.cache
def alone() -> str:
    """Composing takes most of a test's time."""
    return json.dumps(compose(*ALONE))


def composed(root: Path, *changes: str) -> dict:
    merged = OmegaConf.merge(json.loads(alone()), OmegaConf.from_dotlist([f"output_root={root}", *changes]))
    return OmegaConf.to_container(merged)


def begun(root: Path, text: str, *changes: str) -> dict:
    return resolved(composed(root, f"agent.init_from={text}", *changes))


@pytest.mark.parametrize("text", ["outputs/demo", "~/x", "demo", "runs:3", "C:/x"])
def test_a_folder_is_no_reference(text):
    assert parsed(text) is None


@pytest.mark.parametrize("text", ["run:", "run:xyz", "latest:", "preset:", "run:123456789"])
def test_what_names_no_run_is_refused(text):
    with pytest.raises(ConfigError, match="names no run"):
        parsed(text)


def test_a_hash_prefix_is_one_experiment(outputs):
    root, folders = outputs
    short, long = digest(folders["short", 0]), digest(folders["long", 0])
    assert run_folder_of(f"run:{long[:6]}", root) == folders["long", 0]
    assert run_folder_of(f"run:{short}/s1", root) == folders["short", 1]
    assert folder_of(f"run:{short}", root) == folders["short", 0].parent
    with pytest.raises(RunFolderError, match="is not one run, there are 2 runs") as caught:
        run_folder_of(f"run:{short}", root)
    for seed in (0, 1):
        assert f"run:{short}/s{seed}" in str(caught.value) and str(folders["short", seed]) in str(caught.value)
    with pytest.raises(RunFolderError, match="hash begins with 0000"):
        run_folder_of("run:0000", root)
    alike = root / "other" / f"x-{long[:4]}0000"
    shutil.copytree(folders["long", 0], alike / "s0")
    with pytest.raises(RunFolderError, match=f"run:{long[:4]} may be any of 2 runs"):
        run_folder_of(f"run:{long[:4]}", root)
    with pytest.raises(ConfigError, match="a command takes run: or latest:"):
        run_folder_of("preset:a/b", root)


def test_the_same_experiment_under_two_names_is_one(outputs):
    root, folders = outputs
    shutil.copytree(folders["long", 0], root / "copy" / folders["long", 0].parent.name / "s0")
    assert run_folder_of(f"run:{digest(folders['long', 0])}", root).name == "s0"


def test_latest_is_the_newest_that_is_finished(outputs):
    root, folders = outputs
    assert run_folder_of("latest:pre", root) == folders["long", 0]
    with pytest.raises(RunFolderError, match=r"no run in .*broken is finished; there are 1 runs") as caught:
        run_folder_of("latest:broken", root)
    assert "failed" in str(caught.value)
    with pytest.raises(RunFolderError, match=r"no run in .*nothing is finished"):
        run_folder_of("latest:nothing", root)


def test_what_a_run_is_does_not_depend_on_how_the_other_is_spelt(outputs, monkeypatch):
    root, folders = outputs
    long = digest(folders["long", 0])
    monkeypatch.chdir(root.parent)
    spelt = ["latest:pre", f"run:{long[:5]}", f"run:{long}/s0", str(folders["long", 0]), str(folders["long", 0].parent)]
    spelt.append(str(folders["long", 0].relative_to(root.parent)))
    found = [begun(root, text) for text in spelt]
    assert len({config_hash(config) for config in found}) == 1
    assert all(Path(config["agent"]["init_from"]).resolve() == folders["long", 0] for config in found)
    assert found[0][RESOLVED]["agent.init_from"]["run"] == f"{long}/s0"


def test_other_weights_make_another_run(outputs):
    root, folders = outputs
    hashes = [
        config_hash(begun(root, text, *more))
        for text, *more in (
            ("latest:pre",),
            (f"run:{digest(folders['short', 0])}",),
            (f"run:{digest(folders['short', 0])}/s1",),
            (f"run:{digest(folders['short', 0])}", "agent.init_from_seed=shared"),
            ("preset:legislative/escape_room_alone",),
            ("preset:legislative/escape_room_alone", "agent.init_from_seed=1"),
        )
    ]
    assert len({*hashes, config_hash(composed(root))}) == 7
    # A run that is not finished gives other weights at every checkpoint.
    begin = config_hash(begun(root, str(folders["failed", 0])))
    (folders["failed", 0] / "checkpoints").mkdir(exist_ok=True)
    (folders["failed", 0] / "checkpoints" / "checkpoint_00000007.pt").touch()
    assert config_hash(begun(root, str(folders["failed", 0]))) != begin


def test_each_seed_begins_with_its_own_and_they_are_one_experiment(outputs):
    root, folders = outputs
    text = f"run:{digest(folders['short', 0])}"
    own = [begun(root, text, f"seed={seed}") for seed in (0, 1)]
    assert [Path(config["agent"]["init_from"]) for config in own] == [folders["short", seed] for seed in (0, 1)]
    assert len({config_hash(config) for config in own}) == 1
    with pytest.raises(RunFolderError, match=r"agent.init_from=run:\w+: there is no seed 2 \(.*init_from_seed=own\)"):
        begun(root, text, "seed=2")
    shared = [begun(root, text, f"seed={seed}", "agent.init_from_seed=shared") for seed in (0, 1, 2)]
    assert {config["agent"]["init_from"] for config in shared} == {str(folders["short", 0])}
    # To say so in other words is the same.
    assert len({config_hash(config) for config in (*shared, begun(root, f"{text}/s0", "seed=5"))}) == 1
    for rule in ("-1", "true", "other"):
        with pytest.raises(ConfigError, match="own, shared, or a seed"):
            begun(root, text, f"agent.init_from_seed={rule}")


def test_latest_is_found_once_and_kept(outputs, caplog):
    root, folders = outputs
    first = begun(root, "latest:pre")
    newer = write_run(root, "pre", ["learn.env_steps=3000"], 0)
    assert run_folder_of("latest:pre", root) == newer
    again = begun(root, "latest:pre")
    assert again == first and config_hash(again) == config_hash(first)
    # Of another seed, too: a sweep that is extended goes on with what it has begun with.
    assert begun(root, "latest:pre", "seed=4")[RESOLVED] == first[RESOLVED]
    assert "to compare with those" not in caplog.text
    other = begun(root, "latest:pre", "agent.features=32")
    assert other["agent"]["init_from"] == str(newer)
    assert "to compare with those" in caplog.text and f"run:{digest(folders['long', 0])}" in caplog.text
    # A plan writes nothing down.
    stored = sorted(root.rglob(".references/*.json"))
    assert len(stored) == 2
    begun(root, "latest:pre", "dry_run=true", "agent.features=16")
    assert sorted(root.rglob(".references/*.json")) == stored
    # A job computes what was composed, whatever has been finished meanwhile.
    write_run(root, "pre", ["learn.env_steps=4000"], 0)
    assert with_digests(other) == other
    assert without_digests(other)["agent"]["init_from"] == f"run:{digest(newer)}/s0"
    stored[0].write_text("{")
    with pytest.raises(RunFolderError, match="remove it"):
        [begun(root, "latest:pre", *more) for more in ((), ("agent.features=32",))]


def test_a_folder_with_several_experiments_is_refused(outputs):
    root, _ = outputs
    with pytest.raises(RunFolderError, match=r"agent.init_from=.*pre holds 3 runs"):
        begun(root, str(root / "pre"))


def test_other_keys_take_references_and_mean_what_they_need(outputs):
    root, folders = outputs
    long, short = digest(folders["long", 0]), digest(folders["short", 0])
    replayed = resolved(composed(root, "llm.calls=latest:pre"))
    assert (
        replayed["llm"]["calls"] == str(folders["long", 0]) and f"{long}/s0" == replayed[RESOLVED]["llm.calls"]["run"]
    )
    taught = resolved(compose("env=simple_doorkey", "agent=student_mlp", "teacher=offline", f"output_root={root}",
                              f"teacher.table=run:{long}"))  # fmt: skip
    assert taught["teacher"]["table"] == str(folders["long", 0] / "plans.json")
    tuned = resolved(
        compose("env=cartpole", "agent=linear", "dataset=search", "llm.model=x", f"output_root={root}",
                f"dataset.runs=[run:{short},run:{long}/s0]", primary="finetune")
    )  # fmt: skip
    assert tuned["dataset"]["runs"] == [str(folders["short", 0].parent), str(folders["long", 0])]
    assert [run.folder for run in needed(replayed)] == [folders["long", 0]] and needed(replayed)[0].finished
    with pytest.raises(ConfigError, match=r"llm.calls=preset:a/b: .*a preset is not one"):
        resolved(composed(root, "llm.calls=preset:a/b"))


STUDY = "preset:legislative/escape_room_alone"


def test_a_run_is_played_where_what_it_began_with_is_not(outputs):
    """As on another machine than it was computed on; but not if its checkpoint has only what it has learned."""
    root, folders = outputs
    config = begun(root, "latest:pre")
    shutil.rmtree(folders["long", 0])
    assert located(config, play_only=True)["agent"]["init_from"] is None
    assert located(config)["agent"]["init_from"] == str(folders["long", 0])
    around = {**config["agent"], "_target_": "llmrl.agents.llm_ppo.agent.LanguagePPOAgent"}
    assert located({**config, "agent": around}, play_only=True)["agent"] == around
    preset = begun(root, STUDY)
    assert located(preset)["agent"]["init_from"] is None is located(preset, play_only=True)["agent"]["init_from"]


class TestPresets:
    def inherits(self, root, *overrides):
        config = begun(root, STUDY, *overrides)
        [run] = needed(config)
        assert config["agent"]["init_from"] == str(run.folder)
        return config, run.config

    def test_the_environment_and_the_shape_of_the_agent(self, tmp_path):
        plain = self.inherits(tmp_path)[1]
        assert (plain["env"]["n_levers"], plain["env"]["n_envs"]) == (3, 64)
        changed = ("env.n_levers=4", "env.n_envs=7", "agent.features=16", "agent.ppo.learning_rate=0.5")
        config, run = self.inherits(tmp_path, *changed)
        assert run["env"] == {**config["env"], "n_envs": plain["env"]["n_envs"]}
        assert (run["agent"]["features"], run["agent"]["ppo"]) == (16, plain["agent"]["ppo"])
        assert config_hash(run) != config_hash(plain)

    def test_not_how_many_games_there_are_nor_who_proposes(self, tmp_path):
        runs = [self.inherits(tmp_path, *more)[1] for more in ((), ("env.n_envs=8", "agent.ppo.clip=0.1"))]
        assert config_hash(runs[0]) == config_hash(runs[1])

    def test_the_seed(self, tmp_path):
        assert [self.inherits(tmp_path, f"seed={seed}")[1]["seed"] for seed in (0, 3)] == [0, 3]
        assert self.inherits(tmp_path, "seed=3", "agent.init_from_seed=shared")[1]["seed"] == 0
        assert self.inherits(tmp_path, "seed=3", "agent.init_from_seed=2")[1]["seed"] == 2

    def test_another_environment_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match=r"that preset is for another environment: env._target_ is"):
            begun(tmp_path, "preset:regimes/cleanup_pretrain")

    def test_a_changed_preset_is_noticed(self, tmp_path):
        config = begun(tmp_path, STUDY)
        config[RESOLVED]["agent.init_from"]["run"] = "00000000/own"
        with pytest.raises(ConfigError, match="has changed since this run was submitted"):
            needed(config)


def test_what_was_resolved_is_in_the_config_that_is_kept(outputs):
    """As plain data, so that a run can be gone on with from its folder."""
    root, _ = outputs
    config = begun(root, "latest:pre")
    assert config_hash(json.loads(json.dumps(config))) == config_hash(config)
