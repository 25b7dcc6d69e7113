"""Presets in which a mechanism matters: they compose, fit their pre-training, and run."""

import json

import numpy as np
import pytest

import reading_rules
from experiments import compose, find_run_folder, run
from llmrl.core.errors import LLMError
from llmrl.core.records import ChatRequest
from llmrl.envs import escape_room
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.experiment.run_references import list_referenced_runs
from llmrl.llms.client import ChatClient
from llmrl.loops.design import DesignLoop
from llmrl.loops.learn import LearnLoop
from models import make_scripted_client
from shipped import build_llm_principal
from societies import make_outcome

TINY = ("env.n_envs=8", "design.steps=2", "design.adapt_rounds=1", "design.validate_episodes=2")
GAMES = ("cleanup", "harvest")
SHORT = ("env.horizon=20", "agent.init_from=null", "design.steps=2", "design.adapt_rounds=1")


@pytest.mark.parametrize("game", GAMES)
def test_regime_uses_pretraining_output(game, tmp_path):
    has_principal = compose(f"env={game}", "principal=random", f"output_root={tmp_path}")
    [pretraining] = list_referenced_runs(has_principal)
    pretraining_config = pretraining.config
    weights, kinds = [], []
    for config in (has_principal, pretraining_config):
        check_values(config)
        parts = build_parts(config, None)
        kinds.append(type(build_loop(config, parts)))
        weights.append({name: x.shape for name, x in parts.agents[0].policy.state_dict().items()})
        parts.close()
    assert weights[0] == weights[1] and kinds == [DesignLoop, LearnLoop]
    composed_config = compose(f"experiment=regimes/{game}_pretrain", f"output_root={tmp_path}")
    for name in ("engine", "rules", "observe", "mechanism", "show_mechanism", "n_agents", "horizon"):
        assert has_principal["env"][name] == pretraining_config["env"][name] == composed_config["env"][name], name
    assert (
        pretraining_config["env"]["n_envs"] == composed_config["env"]["n_envs"]
        and pretraining_config["learn"] == composed_config["learn"]
    )
    assert pretraining_config["learn"]["mechanism"], "agents that never saw a mechanism do not heed it"


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_regime_runs(game, tmp_path):
    run(f"env={game}", "principal=random", *SHORT, "design.rollout_steps=10", f"output_root={tmp_path}")
    summary = json.loads((find_run_folder(tmp_path) / "summary.json").read_text())
    assert summary["proposals"] == 16 and summary["recommendations"][0]["evaluations"] >= 4


@pytest.mark.parametrize("game", GAMES)
def test_pretraining_runs(game, tmp_path):
    short = ("env.horizon=20", "learn.rollout_steps=10", "learn.env_steps=640", "learn.evaluate_episodes=16")
    run(f"experiment=regimes/{game}_pretrain", *short, f"output_root={tmp_path}")
    assert json.loads((find_run_folder(tmp_path) / "status.json").read_text())["state"] == "finished"


ROOM = "experiment=regimes/escape_room"


def room_spec(*overrides):
    parts = build_parts(compose(ROOM, *overrides), None)
    parts.close()
    return parts.env.spec


def reader(spec, uses):
    return build_llm_principal(spec, ChatClient(reading_rules.ReadingRule(uses)))


def test_escape_room_prompt_describes_game():
    spec = room_spec()
    prompt = build_llm_principal(spec, make_scripted_client()).build_prompt(spec.contexts[4]).text
    assert "Context of this generation: lever_4_works" in prompt and len(spec.contexts) == 6
    assert prompt.count(": from 0 to 12 (reward per step)") == 8
    assert "rewarded with 10" in prompt and "every other agent loses 1," in prompt
    [(door, cost)] = reading_rules._REWARDS.findall(prompt)
    assert (float(door), -float(cost)) == (escape_room.DOOR_REWARD, escape_room.MOVE_REWARD)


@pytest.mark.slow
def test_context_rule_pays_correct_lever():
    spec = room_spec()
    for context in (0, 3, 5):
        vectors = reader(spec, "context_and_rewards").ask(context, 4)
        assert (vectors.argmax(axis=1) == context).all() and ((vectors > 0).sum(axis=1) == 1).all()
        pay = vectors[:, context]
        assert len(set(pay)) == 4 and pay.min() > 2 and pay.max() < 5
        payments = reader(spec, "context").ask(context, 4)[:, context]
        assert sorted(payments) == [1.5, 4.5, 7.5, 10.5]


def test_reward_rule_explores_and_exploits():
    spec = room_spec()
    principal = reader(spec, "rewards")
    first = principal.ask(2, 4)
    assert first.argmax(axis=1).tolist() == [0, 1, 2, 3] and first.max() < 4
    principal.tell(
        [make_outcome(spec, vector, 2, value=value) for vector, value in zip(first, [-5, -9, 130, -5], strict=True)]
    )
    assert np.allclose(principal.ask(2, 2), first[2], atol=0.01)
    assert principal.ask(1, 2).argmax(axis=1).tolist() == [0, 1], "another context is another matter"


def test_rules_reject_unknown_questions():
    with pytest.raises(LLMError, match="no other"):
        reading_rules.ReadingRule("context").complete([ChatRequest(({"role": "user", "content": "Hello"},))])


@pytest.mark.slow
def test_incentives_in_the_escape_room(tmp_path):
    """Moderate pay at the lever that works opens the door; nothing, the most, another lever and the middle do not."""
    vectors = [[0, 0, 3, 0, 0, 0, 0, 0], [0] * 8, [0, 0, 12, 0, 0, 0, 0, 0], [0, 3, 0, 0, 0, 0, 0, 0], [6] * 8]
    room = ("principal=listed", f"principal.vectors={vectors}", "env.fixed_context=2", "design.candidates=5")
    run(
        ROOM,
        *room,
        "env.n_envs=160",
        "design.steps=1",
        "design.confirm_steps=0",
        "design.evaluations=0",
        f"output_root={tmp_path}",
    )
    history = json.loads((find_run_folder(tmp_path) / "summary.json").read_text())["history"]
    good, *bad = [row["objective"] for row in history]
    assert good > 125 and max(bad) < 1


def test_escape_room_regime_reports_payments(tmp_path):
    run(ROOM, "principal=llm", *TINY, f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["proposals"] == 8 and summary["recommendations"][0]["evaluations"] >= 4
    [first, *_] = (folder / "llm_calls.jsonl").read_text().splitlines()
    assert "beyond what they take, all agents and steps together, 0.2 is subtracted" in first
