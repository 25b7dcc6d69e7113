"""`+debug=quick`: its changes to all families of experiments."""

from __future__ import annotations

import json

import pytest

from llmrl.config.debugging import apply_debug_sizes
from llmrl.core.errors import ConfigError
from llmrl.experiment.experiment import Experiment

FAMILIES = {
    "design": ("env=cleanup", "principal=ucb"),
    "escape_room": ("env=escape_room", "principal=llm"),
    "teacher": ("env=simple_doorkey", "agent=student_mlp", "teacher=oracle"),
    "learn": ("env=cartpole", "agent=ppo"),
    "play": ("env=taxi", "agent=llm_player"),
    "search": ("env=cartpole", "agent=linear", "principal=cmaes"),
}
"""One experiment of each; what is quick with all of them."""


@pytest.mark.parametrize("family", FAMILIES)
def test_quick_writes_outputs(family, tmp_path):
    run = Experiment.compose(*FAMILIES[family], "+debug=quick", f"output_root={tmp_path}").run()
    assert run.state == "new" and run.result is not None
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert rows and max(row.get("env_steps", 0) for row in rows) <= 600
    assert {path.name for path in run.folder.iterdir()} >= {"config.yaml", "status.json", "summary.json", "checkpoints"}


def test_quick_keeps_overrides():
    small = Experiment.compose("env=cleanup", "principal=ucb", "+debug=quick", "design.steps=7").config
    assert small["env"]["n_envs"] == 2 and small["env"]["horizon"] == 20 and small["design"]["steps"] == 7
    assert small["agent"]["init_from"] is None and small["design"]["rollout_steps"] is None
    room = Experiment.compose("env=escape_room", "principal=ucb", "+debug=quick").config
    assert room["env"]["horizon"] == 5 and "init_from" not in room["principal"], "what is smaller stays as it is"
    plain_run = Experiment.compose("env=escape_room", "principal=ucb")
    assert "debug" not in plain_run.config and plain_run.hash != Experiment.compose(*FAMILIES["escape_room"]).hash


def test_preset_values():
    config = {
        "a": {"n": 5, "m": 2, "flag": True, "none": None},
        "debug": {"upper_limits": {"a": {"n": 3, "m": 9, "x": 1}}},
    }
    assert apply_debug_sizes(config)["a"] == {"n": 3, "m": 2, "flag": True, "none": None} and config["a"]["n"] == 5
    assert apply_debug_sizes({"a": {"n": None}, "debug": config["debug"]})["a"] == {"n": 3}, (
        "null is as much as there is"
    )
    assert apply_debug_sizes(config, ["a.n"])["a"]["n"] == 5
    config["debug"]["replacements"] = {"a": {"none": 4, "flag": False}, "b": {"c": 1}}
    assert apply_debug_sizes(config)["a"] == {
        "n": 3,
        "m": 2,
        "flag": False,
        "none": 4,
    } and "b" not in apply_debug_sizes(config)
    assert apply_debug_sizes(config, ["a"])["a"]["n"] == 3, "the choice of an option does not type its numbers"
    assert apply_debug_sizes({"a": 1}) == {"a": 1}
    with pytest.raises(ConfigError, match=r"upper_limits.*replacements"):
        apply_debug_sizes({"debug": {"speed": 1}})


def list_keys(node, at=""):
    """Return the dotted names of all keys of a config."""
    for key, value in node.items():
        yield f"{at}{key}"
        if isinstance(value, dict):
            yield from list_keys(value, f"{at}{key}.")


def test_preset_keys_are_used():
    """Check that each key exists in some experiment, including imitation and fine-tuning."""
    words = [(*words, "+debug=quick") for words in FAMILIES.values()]
    words.append(("env=goto_local", "agent=bc", "agent.data=none", "+debug=quick"))
    tuning_options = ("env=cartpole", "agent=linear", "llm.model=none", "+debug=quick")
    configs = [Experiment.compose(*overrides).config for overrides in words]
    configs.append(Experiment.compose(*tuning_options, primary="finetune").config)
    config_keys = {key for config in configs for key in list_keys(config) if not key.startswith("debug")}
    documented_keys = {
        key
        for config in configs
        for part in ("upper_limits", "instead")
        for key in list_keys(config["debug"].get(part, {}))
    }
    assert len(documented_keys) > 30 and documented_keys <= config_keys, documented_keys - config_keys
    imitating, tuning = configs[-2:]
    assert imitating["agent"]["limit"] == 200 and imitating["clone"]["epochs"] in (1,)
    assert tuning["method"]["prompts"] <= 2 and tuning["dataset"]["trials"] <= 40
