"""Citizens that are language models and learn under a principal: adapters, resets, and resumed runs."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments import find_run_folder, load_comparable_metrics, run_silently
from kills import metrics_after_kills
from llmrl.agents.llm_player.agent import compute_action_diversity
from llmrl.core.errors import ConfigError, LlmrlError
from llmrl.run.artifacts import load_saved_state
from llmrl.run.run import Run
from some import mark_long_except

FISHERY = (
    *("env=fishery", "env.n_agents=2", "env.n_envs=8", "env.horizon=2", "env.capacity=20", "env.max_catch=5"),
    *("principal=ucb", "design.steps=2", "design.candidates=2", "design.adapt_rounds=2", "design.evaluations=0"),
    *("design.validate_episodes=4", "checkpoint_seconds=0"),
)
CHAT = (
    *("llm=small_chat", "llm/learn=grpo", "llm.make.format_steps=20", "llm.make.width=32", "llm.make.layers=1"),
    *("llm.make.heads=2", "llm.make.vocabulary=400", "llm.max_tokens=12", "llm.max_invalid=null"),
    *("llm.learn.tune=lora", "llm.learn.group_size=4", "llm.learn.lora.rank=4"),
)
PLAYER = ("agent=llm_player", "agent.history=0", "agent.reflection=false", "agent.repair_turns=0", "agent.show=[]")
SCORER = ("llm=small_scorer", "llm.make.channel=text", "llm.make.width=32", "llm.make.layers=1", "llm.make.heads=2")
CITIZENS = {
    "shared": (*PLAYER, *CHAT),
    "per_player": (*PLAYER, *CHAT, "llm.learn.adapters=per_player"),
    "mixed": (
        *("agent=mixed", *CHAT, "llm.learn.adapters=per_member"),
        "agent.members=[{count: 1, agent: llm_player, history: 0, reflection: false, show: []},{count: 1, agent: ppo}]",
    ),
    "llm_ppo": ("agent=llm_ppo", "agent.tune=lora", "agent.text_channel=text", *SCORER),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return an output folder in which the small models of all tests are created once."""
    return tmp_path_factory.mktemp("outputs")


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("citizens", mark_long_except(("mixed", "llm_ppo"), CITIZENS))
def test_stopped_adaptation_resumes_exactly(models, citizens):
    """A run that is composed again during adaptation ends with the same metrics and weights."""
    overrides = (*FISHERY, *CITIZENS[citizens], "design.steps=3", f"output_root={models}")
    run_silently(*overrides, f"name={citizens}")
    complete = find_run_folder(models / citizens)
    original, n_points = Run.safe_point, []

    def stop_in_second_step(self, *arguments, **options):
        original(self, *arguments, **options)
        n_points.append(None)
        if len(n_points) == 4:  # after the first of two rounds of the second step; another reset follows
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Run, "safe_point", stop_in_second_step)
        run_silently(*overrides, f"name=stopped_{citizens}")
    run_silently(*overrides, f"name=stopped_{citizens}")
    stopped = find_run_folder(models / f"stopped_{citizens}")
    assert load_comparable_metrics(stopped) == load_comparable_metrics(complete)
    learning = [row for row in rows(complete) if any("learn/reward" in name or "loss" in name for name in row)]
    assert len(learning) == 6


@pytest.mark.long
@pytest.mark.slow
def test_adaptation_survives_kills(models):
    """Five kills within the adaptation rounds do not change the metrics."""
    killed, reference = metrics_after_kills(models, (*FISHERY, *CITIZENS["per_player"], "design.steps=6"), 5)
    assert killed == reference


@pytest.mark.slow
def test_societies_have_separate_adapters(models):
    """Two candidates of a step train different weights, from equal ones after each reset."""
    run_silently(*FISHERY, *CITIZENS["per_player"], f"output_root={models}", "name=adapters")
    folder = find_run_folder(models / "adapters")
    agents = load_saved_state(folder)[1]["agents"]
    assert [len(agent["learners"]) for agent in agents] == [2, 2]
    weights = [learner["weights"] for agent in agents for learner in agent["learners"]]
    assert len({tuple(x.shape for x in tensors.values()) for tensors in weights}) == 1
    for i, tensors in enumerate(weights):
        for other in weights[:i]:
            assert any((x != y).any() for x, y in zip(tensors.values(), other.values(), strict=True))
    assert all(learner["updates"] == 2 for agent in agents for learner in agent["learners"])
    names = sorted(path.name for path in (folder / "adapter").glob("*/*"))
    assert names == sorted(f"society_{i}_player_{k}" for i in range(2) for k in range(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("citizens", "overrides", "message"),
    [
        ("shared", ("llm.learn.tune=full",), r"llm\.learn\.tune"),
        ("shared", ("llm.learn.advantage=replay",), r"llm\.learn\.advantage"),
        ("shared", ("llm.learn.group_size=3",), r"llm\.learn\.group_size"),
        ("llm_ppo", ("agent.tune=full",), r"agent\.tune"),
    ],
)
def test_unsupported_options_raise(models, citizens, overrides, message):
    with pytest.raises((ConfigError, LlmrlError), match=message):
        run_silently(*FISHERY, *CITIZENS[citizens], *overrides, f"output_root={models}", "name=refused")


@pytest.mark.slow
def test_mechanism_phases(models):
    """Without a principal, a fixed mechanism may be introduced while chat models learn."""
    phases = (
        "learn.mechanism=[{mixture: [{low: [0, 0], high: [0, 0]}], episodes: 2},"
        " {mixture: [{low: [2, 2], high: [2, 2]}]}]"
    )
    overrides = [x for x in FISHERY if not x.startswith(("principal", "design"))]
    learn = ("learn.env_steps=96", "learn.evaluate_episodes=8", phases)
    run_silently(
        *overrides, *CITIZENS["shared"], *learn, "llm.make.format_steps=150", f"output_root={models}", "name=phases"
    )
    updates = [row for row in rows(find_run_folder(models / "phases")) if "learn/reward" in row]
    collected = [row["episode/tax_collected"] for row in updates]
    assert len(collected) == 6 and not any(collected[:2]) and any(collected[2:])


def test_diversity_of_actions():
    action = torch.tensor([[[0, 1], [0, 1]], [[0, 1], [0, 0]]])
    ended = torch.tensor([[False, True], [True, False]])
    rollout = SimpleNamespace(action=action, terminated=ended, truncated=torch.zeros_like(ended))
    # The last step of the second game is after its end.
    assert compute_action_diversity(rollout, 3) == pytest.approx(np.log(2))
    rollout.action = torch.zeros_like(action)
    assert compute_action_diversity(rollout, 3) == pytest.approx(0.0)
