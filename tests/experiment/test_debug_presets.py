"""`+debug=quick|profile|anomaly|overfit`: their changes to all families of experiments."""

from __future__ import annotations

import itertools
import json
import pstats
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from llmrl.config.debugging import Debugging, apply_debug_sizes, debugging
from llmrl.core.errors import ConfigError, Diverged
from llmrl.core.observers import Transition
from llmrl.core.option_files import names
from llmrl.core.records import PolicyOutput, Step
from llmrl.experiment.debug_tools import FiniteCheck
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.parts import build_parts
from llmrl.experiment.run_batching_key import Alone, reason_to_run_alone
from llmrl.run.metrics import MetricLog

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
    assert debugging({}) == Debugging()
    with pytest.raises(ConfigError, match=r"upper_limits.*fixed_episode_seed"):
        debugging({"debug": {"speed": 1}})


def test_presets_compose_in_combination():
    assert names("debug") == ["anomaly", "overfit", "profile", "quick"]
    combined = debugging(
        Experiment.compose("env=escape_room", "principal=ucb", "+debug=[quick,profile,anomaly]").config
    )
    assert combined.profile and combined.anomaly and combined.upper_limits and not combined.fixed_episode_seed
    for name in names("debug"):
        config = Experiment.compose("env=escape_room", "principal=ucb", f"+debug={name}").config
        assert reason_to_run_alone(config) == Alone.DEBUG


def test_profile_is_in_run_folder(tmp_path):
    run = Experiment.compose(
        "env=escape_room", "principal=ucb", "+debug=[quick,profile]", f"output_root={tmp_path}"
    ).run()
    profile_stats = pstats.Stats(str(run.folder / "profile" / "profile.pstats"))
    assert any("escape_room.py" in file and name == "step" for file, _, name in profile_stats.stats)  # type: ignore[attr-defined]
    assert "cumulative" in (run.folder / "profile" / "profile.txt").read_text()
    assert not (run.folder / "profile" / "trace.json").exists()


def transition(**changed) -> Transition:
    observation = {"vector": np.zeros((2, 1, 3), np.float32), "text": np.array([["a"], ["b"]], dtype=object)}
    reward = np.zeros((2, 1), np.float32)
    step = Step(
        observation, changed.get("reward", reward), reward, np.zeros(2, bool), np.zeros(2, bool), {"m": np.zeros(2)}
    )
    act = PolicyOutput(torch.zeros(2, 1, dtype=torch.int64), logits=changed.get("logits"))
    return Transition(observation, act, step, np.zeros(2, bool))


def test_error_names_first_non_finite_number():
    check = FiniteCheck()
    check.on_step(transition(logits=torch.tensor([[[0.0, -torch.inf]], [[1.0, 2.0]]])))
    with pytest.raises(Diverged, match=r"reward.*nan.*\(1, 0\) of \[2, 1\]"):
        check.on_step(transition(reward=np.array([[0], [np.nan]], np.float32)))
    with pytest.raises(Diverged, match=r"logits.*inf.*\(0, 0, 1\)"):
        check.on_step(transition(logits=torch.tensor([[[0.0, torch.inf]], [[1.0, 2.0]]])))
    with pytest.raises(Diverged, match="observation vector"):
        check.on_reset(np.ones(2, bool), {"vector": np.array([np.inf])})


def test_anomaly_ends_run_with_exploding_loss(tmp_path):
    words = ("env=cartpole", "agent=ppo", "+debug=[quick,anomaly]", "agent.ppo.learning_rate=1e30")
    experiment = Experiment.compose(*words, "agent.ppo.max_grad_norm=1e30", f"output_root={tmp_path}")
    with pytest.raises((Diverged, RuntimeError, ValueError)):
        experiment.run()
    assert not torch.is_anomaly_enabled(), "what was switched on is off again"
    log = MetricLog(tmp_path)
    log.log("update", "updates", {"loss/value": float("nan")}, updates=1)
    log.finite_only = True
    with pytest.raises(Diverged, match=r"loss/value.*nan.*2"):
        log.log("update", "updates", {"loss/value": float("nan")}, updates=2)
    log.close()


def test_torch_trace_is_optional(tmp_path):
    words = ("env=cartpole", "agent=ppo", "+debug=[quick,profile]", "debug.trace=true", "learn.env_steps=40")
    run = Experiment.compose(*words, f"output_root={tmp_path}").run()
    events = json.loads((run.folder / "profile" / "trace.json").read_text())["traceEvents"]
    assert any(event.get("name", "").startswith("aten::") for event in events)


def list_keys(node, at=""):
    """Return the dotted names of all keys of a config."""
    for key, value in node.items():
        yield f"{at}{key}"
        if isinstance(value, dict):
            yield from list_keys(value, f"{at}{key}.")


def test_preset_keys_are_used():
    """Check that each key exists in some experiment, including imitation and fine-tuning."""
    words = [(*words, "+debug=[quick,overfit]") for words in FAMILIES.values()]
    words.append(("env=goto_local", "agent=bc", "agent.data=none", "+debug=[quick,overfit]"))
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
    assert imitating["agent"]["limit"] == 64 and imitating["clone"]["epochs"] in (1, 200)
    assert tuning["method"]["prompts"] <= 2 and tuning["dataset"]["trials"] <= 40


def blackjack(actions: tuple[int, ...]) -> float:
    """Return the return of a list of actions, followed by standing, in the fixed episode."""
    parts = build_parts(Experiment.compose("env=blackjack", "agent=ppo", "+debug=overfit", "env.n_envs=1").config, None)
    try:
        parts.env.reset()
        total = 0.0
        for action in (*actions, 0, 0):
            step = parts.env.step(torch.tensor([[action]]))
            total += float(np.asarray(step.reward)[0, 0])
            if step.terminated[0] or step.truncated[0]:
                return total
        raise AssertionError("a hand that is stood with is over")
    finally:
        parts.close()


def test_all_episodes_are_equal():
    config = Experiment.compose("env=cartpole", "agent=ppo", "+debug=overfit", "env.n_envs=3").config
    parts = build_parts(config, None)
    first = np.asarray(parts.env.reset()["vector"]).copy()
    parts.env.step(torch.zeros(3, 1, dtype=torch.int64))
    second_reset = np.asarray(parts.env.reset(np.array([False, True, True]), 77)["vector"])
    parts.close()
    assert (
        (first == first[0]).all() and (second_reset[1:] == first[1:]).all() and not (second_reset[0] == first[0]).all()
    )


def test_single_episode_learner_reaches_optimum(tmp_path):
    best = max(blackjack(actions) for n in range(3) for actions in itertools.product((0, 1), repeat=n))
    run = Experiment.compose(
        *("env=blackjack", "agent=ppo", "+debug=overfit", "env.n_envs=8", "learn.env_steps=3000"),
        *("learn.rollout_steps=16", "learn.evaluate_episodes=8", f"output_root={tmp_path}"),
    ).run()
    assert run.result == pytest.approx(best), SimpleNamespace(best=best, reached=run.result)
