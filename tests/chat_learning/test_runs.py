"""Runs with a learning chat model: metrics, checkpoints, adapters and invalid options."""

import json

import pytest
from safetensors.torch import load_file

from experiments import find_run_folder, load_comparable_metrics, run_silently
from kills import metrics_after_kills
from llmrl.core.errors import LlmrlError
from llmrl.experiment.model_export import export_model
from llmrl.llms.local.loading import load_model, load_tokenizer
from llmrl.run.artifacts import load_saved_state
from some import mark_long_except

PLAYER = ("agent=llm_player", "agent.history=0", "agent.reflection=false", "agent.repair_turns=0", "agent.show=[]")
MODEL = (
    *("llm=small_chat", "llm/learn=grpo", "llm.make.format_steps=40", "llm.make.width=32", "llm.make.layers=2"),
    *("llm.make.heads=2", "llm.make.vocabulary=400", "llm.max_tokens=16", "llm.max_invalid=null"),
)
BLACKJACK = ("env=blackjack", "env.n_envs=8", "learn.env_steps=24", "learn.evaluate_episodes=8", *PLAYER, *MODEL)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return an output folder in which the small models of all tests are created once."""
    return tmp_path_factory.mktemp("outputs")


def run(root, name, *overrides):
    run_silently(*overrides, f"output_root={root}", f"name={name}")
    return find_run_folder(root / name)


@pytest.mark.slow
@pytest.mark.parametrize("advantage", mark_long_except(["replay"], ["turn", "replay"]))
def test_run_learns_from_complete_episodes(models, advantage):
    folder = run(models, advantage, *BLACKJACK, f"llm.learn.advantage={advantage}", "llm.learn.continuations=1")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [row for row in rows if "learn/reward" in row]
    assert updates and all(row["learn/log_prob_error"] < 1e-4 for row in updates[:1])
    names = {"learn/kl", "learn/entropy", "learn/clip_fraction", "learn/reply_tokens", "learn/invalid", "learn/tokens"}
    assert names <= updates[0].keys()
    assert updates[-1]["env_steps"] >= 24
    # With continuations, fewer updates use the same number of steps.
    assert updates[0]["env_steps"] >= 8 * (1 + (advantage == "replay"))
    assert not (folder / "adapter").exists()
    weights = load_saved_state(folder)[1]["agents"][0]["learners"][0]["weights"]
    merged = export_model(folder, None, merge=True, trusted=[])
    module = load_model("causal", str(merged), None, "cpu", "float32")
    assert all((parameter == weights[name]).all() for name, parameter in module.named_parameters())
    assert load_tokenizer(str(merged), None).chat_template


@pytest.mark.slow
@pytest.mark.parametrize("advantage", mark_long_except(["turn"], ["turn", "replay"]))
def test_long_episodes_are_truncated(models, advantage):
    """No episode of FrozenLake ends within two steps on the way back and forth, and replies are learned from anyway."""
    overrides = ("env=frozen_lake", "env.n_envs=8", "learn.rollout_steps=2", "learn.env_steps=32", *PLAYER, *MODEL)
    options = (f"llm.learn.advantage={advantage}", "llm.learn.continuations=1", "learn.evaluate_episodes=8")
    folder = run(models, f"truncated_{advantage}", *overrides, *options, "env.horizon=5")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [row for row in rows if "learn/tokens" in row]
    steps = [row["env_steps"] for row in updates]
    # 8 games x 2 steps, and with replay the same again from the first state and half of it from the second.
    assert steps[0] == (16 if advantage == "turn" else 40)
    assert len(steps) == (2 if advantage == "turn" else 1)


@pytest.mark.slow
def test_adapter_reference_is_resolved(models):
    folder = run(models, "tuned", *BLACKJACK, "llm.learn.tune=lora")
    assert export_model(folder, None, merge=False, trusted=[]) == folder / "adapter"
    assert any("lora_B" in name for name in load_file(folder / "adapter" / "adapter_model.safetensors"))
    player = run(
        models, "user", *BLACKJACK, "llm/learn=none", "llm.adapter=latest:tuned", "play.episodes=4", "llm.temperature=0"
    )
    assert "adapter" in json.loads((player / "status.json").read_text())["llm"]


@pytest.mark.slow
def test_mixed_society_members_learn(models):
    """A chat model and a PPO agent learn side by side; episodes end in the middle of rollouts."""
    members = (
        "[{count: 1, agent: llm_player, name: chat, history: 0, reflection: false, show: []}, {count: 3, agent: ppo}]"
    )
    folder = run(
        models,
        "mixed",
        *("env=fishery", "env.n_agents=4", "env.n_envs=8", "env.horizon=3", "agent=mixed", f"agent.members={members}"),
        *("learn.rollout_steps=4", "learn.env_steps=128", "learn.evaluate_episodes=2", *MODEL),
    )
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [row for row in rows if "chat/learn/reward" in row]
    assert len(updates) >= 3 and any("loss" in name for name in updates[0])


@pytest.mark.slow
def test_stopped_run_resumes_exactly(models):
    """A run that is composed again in the middle of training ends with the same metrics."""
    from llmrl.run.run import Run

    whole = run(models, "whole", *BLACKJACK, "learn.env_steps=40", "checkpoint_seconds=0")
    overrides = (*BLACKJACK, "learn.env_steps=40", "checkpoint_seconds=0", f"output_root={models}", "name=stopped")
    original, n_points = Run.safe_point, []

    def stop_at_second(self, *arguments, **options):
        original(self, *arguments, **options)
        n_points.append(None)
        if len(n_points) == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Run, "safe_point", stop_at_second)
        run_silently(*overrides)
    run_silently(*overrides)
    stopped = find_run_folder(models / "stopped")
    assert load_comparable_metrics(stopped) == load_comparable_metrics(whole)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("advantage", ["turn", "anchor"])
def test_training_survives_ten_kills(tmp_path, advantage):
    """Conversations whose earlier turns are cached, with updates in the middle of episodes."""
    overrides = (
        *("env=frozen_lake", "env.n_envs=8", "learn.rollout_steps=3", "learn.env_steps=1200", "env.horizon=8"),
        *("learn.evaluate_episodes=8", *PLAYER, "agent.history=4", *MODEL, f"llm.learn.advantage={advantage}"),
    )
    killed, reference = metrics_after_kills(tmp_path, overrides, 10)
    assert killed == reference and len(killed) > 10


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("env.n_envs=12",), "group_size"),
        (("llm.learn.group_size=1",), "group_size"),
        (("env=fishery", "principal=random", "env.n_envs=8", "llm.learn.advantage=replay"), "advantage"),
        (("llm.temperature=0",), "temperature"),
    ],
)
def test_incompatible_options_raise(models, overrides, message):
    with pytest.raises(LlmrlError, match=message):
        run_silently(*BLACKJACK, *overrides, f"output_root={models}", "name=refused")
