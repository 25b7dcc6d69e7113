"""References to runs: resolution, storage, hashes and inherited options."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments import compose
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.experiment.parts import without_missing_weights
from llmrl.experiment.run_lookup import parse_reference, resolve_folder, resolve_run_folder
from llmrl.experiment.run_references import list_referenced_runs, resolve_references, with_digests, without_digests
from llmrl.run.config_hash import RESOLVED_RUNS_KEY, config_hash
from run_folders import write_run

LEARNING_OPTIONS = ("env=escape_room", "principal=none")


@pytest.fixture
def outputs(tmp_path):
    """Write three experiments: `pre` at two lengths, the shorter at two seeds, and one that failed."""
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
def learning_options() -> str:
    """Cache the composed options, because composition takes most of a test's time."""
    return json.dumps(compose(*LEARNING_OPTIONS))


def compose_run(root: Path, *changes: str) -> dict:
    merged = OmegaConf.merge(json.loads(learning_options()), OmegaConf.from_dotlist([f"output_root={root}", *changes]))
    return OmegaConf.to_container(merged)


def start_run(root: Path, text: str, *changes: str) -> dict:
    return resolve_references(compose_run(root, f"agent.init_from={text}", *changes))


@pytest.mark.parametrize("text", ["outputs/demo", "~/x", "demo", "runs:3", "C:/x"])
def test_folder_is_not_reference(text):
    assert parse_reference(text) is None


@pytest.mark.parametrize("text", ["run:", "run:xyz", "latest:", "preset:", "run:123456789"])
def test_rejects_invalid_references(text):
    with pytest.raises(ConfigError, match=f"'{text}'"):
        parse_reference(text)


def test_hash_prefix_is_experiment(outputs):
    root, folders = outputs
    short, long = digest(folders["short", 0]), digest(folders["long", 0])
    assert resolve_run_folder(f"run:{long[:6]}", root) == folders["long", 0]
    assert resolve_run_folder(f"run:{short}/s1", root) == folders["short", 1]
    assert resolve_folder(f"run:{short}", root) == folders["short", 0].parent
    with pytest.raises(RunFolderError, match="2 runs") as error:
        resolve_run_folder(f"run:{short}", root)
    for seed in (0, 1):
        assert f"run:{short}/s{seed}" in str(error.value) and str(folders["short", seed]) in str(error.value)
    with pytest.raises(RunFolderError, match="0000"):
        resolve_run_folder("run:0000", root)
    similar_folder = root / "other" / f"x-{long[:4]}0000"
    shutil.copytree(folders["long", 0], similar_folder / "s0")
    with pytest.raises(RunFolderError, match=f"run:{long[:4]} .* 2 runs"):
        resolve_run_folder(f"run:{long[:4]}", root)
    with pytest.raises(ConfigError, match=r"run:.*latest:"):
        resolve_run_folder("preset:a/b", root)


def test_experiment_has_alternative_names(outputs):
    root, folders = outputs
    shutil.copytree(folders["long", 0], root / "copy" / folders["long", 0].parent.name / "s0")
    assert resolve_run_folder(f"run:{digest(folders['long', 0])}", root).name == "s0"


def test_latest_is_newest_completed_run(outputs):
    root, folders = outputs
    assert resolve_run_folder("latest:pre", root) == folders["long", 0]
    with pytest.raises(RunFolderError, match=r"broken.*1 runs") as error:
        resolve_run_folder("latest:broken", root)
    assert "failed" in str(error.value)
    with pytest.raises(RunFolderError, match=r"nothing.*finished"):
        resolve_run_folder("latest:nothing", root)


def test_spelling_keeps_hash(outputs, monkeypatch):
    root, folders = outputs
    long = digest(folders["long", 0])
    monkeypatch.chdir(root.parent)
    forms = [
        "latest:pre",
        f"run:{long[:5]}",
        f"run:{long}/s0",
        str(folders["long", 0]),
        str(folders["long", 0].parent),
    ]
    forms.append(str(folders["long", 0].relative_to(root.parent)))
    references = [start_run(root, text) for text in forms]
    assert len({config_hash(config) for config in references}) == 1
    assert all(Path(config["agent"]["init_from"]).resolve() == folders["long", 0] for config in references)
    assert references[0][RESOLVED_RUNS_KEY]["agent.init_from"]["run"] == f"{long}/s0"


def test_different_weights_change_hash(outputs):
    root, folders = outputs
    hashes = [
        config_hash(start_run(root, text, *overrides))
        for text, *overrides in (
            ("latest:pre",),
            (f"run:{digest(folders['short', 0])}",),
            (f"run:{digest(folders['short', 0])}/s1",),
            (f"run:{digest(folders['short', 0])}", "agent.init_from_seed=shared"),
            ("preset:legislative/escape_room_alone",),
            ("preset:legislative/escape_room_alone", "agent.init_from_seed=1"),
        )
    ]
    assert len({*hashes, config_hash(compose_run(root))}) == 7
    # A run that is not finished gives other weights at every checkpoint.
    begin = config_hash(start_run(root, str(folders["failed", 0])))
    (folders["failed", 0] / "checkpoints").mkdir(exist_ok=True)
    (folders["failed", 0] / "checkpoints" / "checkpoint_00000007.pt").touch()
    assert config_hash(start_run(root, str(folders["failed", 0]))) != begin


def test_seeds_use_matching_runs(outputs):
    root, folders = outputs
    text = f"run:{digest(folders['short', 0])}"
    seed_configs = [start_run(root, text, f"seed={seed}") for seed in (0, 1)]
    assert [Path(config["agent"]["init_from"]) for config in seed_configs] == [
        folders["short", seed] for seed in (0, 1)
    ]
    assert len({config_hash(config) for config in seed_configs}) == 1
    with pytest.raises(RunFolderError, match=r"agent.init_from=run:\w+: .* seed 2 \(.*init_from_seed=own\)"):
        start_run(root, text, "seed=2")
    shared = [start_run(root, text, f"seed={seed}", "agent.init_from_seed=shared") for seed in (0, 1, 2)]
    assert {config["agent"]["init_from"] for config in shared} == {str(folders["short", 0])}
    # To say so in other words is the same.
    assert len({config_hash(config) for config in (*shared, start_run(root, f"{text}/s0", "seed=5"))}) == 1
    for rule in ("-1", "true", "other"):
        with pytest.raises(ConfigError, match="own, shared"):
            start_run(root, text, f"agent.init_from_seed={rule}")


def test_latest_is_resolved_once(outputs):
    root, _ = outputs
    first = start_run(root, "latest:pre")
    newer = write_run(root, "pre", ["learn.env_steps=3000"], 0)
    assert resolve_run_folder("latest:pre", root) == newer
    second_start = start_run(root, "latest:pre")
    assert second_start == first and config_hash(second_start) == config_hash(first)
    # Of another seed, too: a sweep that is extended goes on with what it has begun with.
    assert start_run(root, "latest:pre", "seed=4")[RESOLVED_RUNS_KEY] == first[RESOLVED_RUNS_KEY]
    wider = start_run(root, "latest:pre", "agent.features=32")
    assert wider["agent"]["init_from"] == str(newer)
    # A plan writes nothing down.
    stored = sorted(root.rglob(".references/*.json"))
    assert len(stored) == 2
    start_run(root, "latest:pre", "dry_run=true", "agent.features=16")
    assert sorted(root.rglob(".references/*.json")) == stored
    # A job computes what was composed, whatever has been finished meanwhile.
    write_run(root, "pre", ["learn.env_steps=4000"], 0)
    assert with_digests(wider) == wider
    assert without_digests(wider)["agent"]["init_from"] == f"run:{digest(newer)}/s0"
    stored[0].write_text("{")
    with pytest.raises(RunFolderError, match="`latest:`"):
        [start_run(root, "latest:pre", *overrides) for overrides in ((), ("agent.features=32",))]


def test_rejects_folder_with_multiple_experiments(outputs):
    root, _ = outputs
    with pytest.raises(RunFolderError, match=r"agent.init_from=.*pre .* 3 runs"):
        start_run(root, str(root / "pre"))


def test_reference_keys_are_resolved(outputs):
    root, folders = outputs
    long, short = digest(folders["long", 0]), digest(folders["short", 0])
    replay_config = resolve_references(compose_run(root, "llm.calls=latest:pre"))
    assert (
        replay_config["llm"]["calls"] == str(folders["long", 0])
        and f"{long}/s0" == replay_config[RESOLVED_RUNS_KEY]["llm.calls"]["run"]
    )
    student = ["env=simple_doorkey", "agent=student_mlp", "teacher=offline"]
    taught = resolve_references(compose(*student, f"output_root={root}", f"teacher.table=run:{long}"))
    assert taught["teacher"]["table"] == str(folders["long", 0] / "plans.json")
    tuned_config = resolve_references(
        compose("env=cartpole", "agent=linear", "dataset=search", "llm.model=x", f"output_root={root}",
                f"dataset.runs=[run:{short},run:{long}/s0]", primary="finetune")
    )  # fmt: skip
    assert tuned_config["dataset"]["runs"] == [str(folders["short", 0].parent), str(folders["long", 0])]
    [run] = list_referenced_runs(replay_config)
    assert run.folder == folders["long", 0] and run.finished
    with pytest.raises(ConfigError, match=r"llm.calls=preset:a/b"):
        resolve_references(compose_run(root, "llm.calls=preset:a/b"))


STUDY = "preset:legislative/escape_room_alone"


def test_run_plays_with_missing_initial_run(outputs):
    """Play on another machine, unless the checkpoint has only the learned weights."""
    root, folders = outputs
    config = start_run(root, "latest:pre")
    shutil.rmtree(folders["long", 0])
    assert without_missing_weights(config, play_only=True)["agent"]["init_from"] is None
    assert without_missing_weights(config)["agent"]["init_from"] == str(folders["long", 0])
    agent_node = {**config["agent"], "_target_": "llmrl.agents.llm_ppo.agent.LanguagePPOAgent"}
    assert without_missing_weights({**config, "agent": agent_node}, play_only=True)["agent"] == agent_node
    preset = start_run(root, STUDY)
    assert (
        without_missing_weights(preset)["agent"]["init_from"]
        is None
        is without_missing_weights(preset, play_only=True)["agent"]["init_from"]
    )


class TestPresets:
    def inherits(self, root, *overrides):
        config = start_run(root, STUDY, *overrides)
        [run] = list_referenced_runs(config)
        assert config["agent"]["init_from"] == str(run.folder)
        return config, run.config

    def test_environment_and_agent_shape(self, tmp_path):
        plain = self.inherits(tmp_path)[1]
        assert (plain["env"]["n_levers"], plain["env"]["n_envs"]) == (3, 64)
        changed = ("env.n_levers=4", "env.n_envs=7", "agent.features=16", "agent.ppo.learning_rate=0.5")
        config, run = self.inherits(tmp_path, *changed)
        assert run["env"] == {**config["env"], "n_envs": plain["env"]["n_envs"]}
        assert (run["agent"]["features"], run["agent"]["ppo"]) == (16, plain["agent"]["ppo"])
        assert config_hash(run) != config_hash(plain)

    def test_game_count_is_ignored(self, tmp_path):
        runs = [self.inherits(tmp_path, *overrides)[1] for overrides in ((), ("env.n_envs=8", "agent.ppo.clip=0.1"))]
        assert config_hash(runs[0]) == config_hash(runs[1])

    def test_seed(self, tmp_path):
        assert [self.inherits(tmp_path, f"seed={seed}")[1]["seed"] for seed in (0, 3)] == [0, 3]
        assert self.inherits(tmp_path, "seed=3", "agent.init_from_seed=shared")[1]["seed"] == 0
        assert self.inherits(tmp_path, "seed=3", "agent.init_from_seed=2")[1]["seed"] == 2

    def test_rejects_different_environment(self, tmp_path):
        with pytest.raises(ConfigError, match=r"env._target_"):
            start_run(tmp_path, "preset:regimes/cleanup_pretrain")

    def test_changed_preset_is_detected(self, tmp_path):
        config = start_run(tmp_path, STUDY)
        config[RESOLVED_RUNS_KEY]["agent.init_from"]["run"] = "00000000/own"
        with pytest.raises(ConfigError, match="has changed"):
            list_referenced_runs(config)


def test_stored_config_contains_resolved_references(outputs):
    """Store plain data, so that a run can be resumed from its folder."""
    root, _ = outputs
    config = start_run(root, "latest:pre")
    assert config_hash(json.loads(json.dumps(config))) == config_hash(config)
