"""Published fine-tuning setting: its values, and composition and plans of its documented commands."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from experiments import compose
from llmrl.core.seeding import Seeds
from llmrl.experiment.models import build_model
from llmrl.experiment.resources import RunResources
from llmrl.finetuning.application import FinetuneApplication, build_loop
from llmrl.finetuning.rewards import REWARDS, ReplyEvaluator
from llmrl.finetuning.trials import ParameterTrial, ProposalExample
from tiny_models import make_tiny_causal

PAGE = Path(__file__).parents[2] / "docs" / "finetuning.md"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pytest.importorskip("transformers")
    return make_tiny_causal(tmp_path_factory.mktemp("model"), window=8192)


def commands() -> list[list[str]]:
    """Return the overrides of each command on the page that chooses the published setting."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    return [shlex.split(line)[1:] for line in lines if "method=grpo_published" in line]


def test_paper_setting_matches_paper():
    config = compose("method=grpo_published", "llm.model=/models/some", primary="finetune")
    method, data, rewards = config["method"], config["dataset"], config["rewards"]
    assert (method["lora"]["rank"], method["lora"]["alpha"], method["lora"]["dropout"]) == (8, 32, 0.1)
    assert {"v_proj", "gate_proj"}.isdisjoint(method["lora"]["targets"])
    assert method["prompts"] * method["samples"] == 8 * 16 and method["samples"] == 4
    # 4,000 parameters, a fifth of them held out; five times through the rest.
    assert method["optimizer"]["steps"] * method["prompts"] == 5 * data["prompts"] == 5 * 0.8 * data["trials"]
    assert (data["low"], data["high"], data["examples"], data["episodes"]) == (-10, 10, 1, 20)
    principal = {key: config["principal"][key] for key in ("prompt", "rows", "reply", "out_of_range", "duplicates")}
    assert list(principal.values()) == ["numeric", "named", "lines", "accept", "accept"]
    assert config["principal"]["first_iteration"] == 0  # after one trial: iteration 1
    assert rewards["parity"] and rewards["rollouts"] == 1 and config["llm"]["max_tokens"] == 256
    assert {name: rewards[name] for name in REWARDS} == {
        "valid": 1, "in_bounds": 0, "scaled_return": 1, "improvement": 1, "rank": 0, "repeat": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("env", "numbers", "decimals", "steps", "optimum", "half_way"),
    [
        ("mountain_car_continuous", 3, 1, "500, each of 32", 100, -50.0),
        ("swimmer", 18, 2, "1,000, each of 16", 250, 125.0),
    ],
)
def test_page_commands_can_be_planned(env, numbers, decimals, steps, optimum, half_way, model, tmp_path):
    if env == "swimmer":
        pytest.importorskip("mujoco")
    (overrides,) = [overrides for overrides in commands() if f"env={env}" in overrides]
    local_settings = {"llm.model": model, "hardware": "cpu"}
    overrides = [
        f"{key}={local_settings.get(key, value)}" for key, _, value in (word.partition("=") for word in overrides)
    ]
    config = compose(*overrides, f"output_root={tmp_path}", "hardware.cores=1", "dry_run=true", primary="finetune")
    resources = RunResources(config, build_model)
    plan = dict(FinetuneApplication().plan(config, resources))
    with build_loop(config, resources) as loop:
        prompt_format = loop.task.prompt_format
        assert plan["policy"] == f"linear policy, {numbers} parameters in [-6, 6]" and steps in plan["  steps"]
        assert {parameter.decimals for parameter in prompt_format.space.parameters} == {decimals}
        assert loop.rewards.scale(np.zeros(1))(half_way) == pytest.approx(0.5)
        prompt_format.proposer.on_search_start(400, 20)
        vector = np.round(np.linspace(-9.99, 9.99, numbers), decimals)
        question = prompt_format.make_prompt(ProposalExample(0, (ParameterTrial(vector, np.array([half_way])),), None))
    # The one trial under its names, nothing of the game, out of bounds as it is, the first iteration.
    row = "; ".join(f"params[{i}]: {x:.5g}" for i, x in enumerate(vector))
    assert question.template_name == "search/numeric" and f"{row}; f(params): {half_way:.2f}" in question.text
    assert "iteration 1 of 400" in question.text and str(optimum) in question.text
    assert not {"car", "swim", "force", "observation"} & set(re.findall(r"\w+", question.text.lower()))
    assert np.array_equal(prompt_format.to_evaluated_vector(vector), vector)


def test_tabular_policy_plays_only_actions(model, tmp_path):
    small_settings = ["dataset.trials=64", "dataset.episodes=2", "dataset.prompts=32", "dataset.held_out=4"]
    arguments = ["method=grpo_published", "env=nim", "agent=tabular", f"llm.model={model}", f"output_root={tmp_path}"]
    config = compose(*arguments, *small_settings, "hardware.cores=1", primary="finetune")
    with build_loop(config, RunResources(config, build_model)) as loop:
        prompt_format, low, high = loop.task.prompt_format, loop.task.space.low, loop.task.space.high
        data = loop.dataset.prepare(loop.task, tmp_path, Seeds(0))
        vectors = np.stack([trial.vector for question in data.train for trial in question.shown_trials])
        assert np.all((vectors >= low) & (vectors <= high)) and len(np.unique(vectors)) == high[0] - low[0] + 1
        evaluator = ReplyEvaluator(prompt_format, loop.task.play, 1, Seeds(1))
        prompts, out_of_bounds = data.train[:2], high + 1
        first, second = evaluator(
            prompts, [prompt_format.format_reply(high, ""), prompt_format.format_reply(out_of_bounds, "")], "step 1"
        )
    assert first.is_in_bounds and len(first.returns) == 1
    assert np.array_equal(second.vector, out_of_bounds) and not second.is_in_bounds and not len(second.returns)
    assert REWARDS["valid"](second, None) == 1.0 and REWARDS["scaled_return"](second, None) == 0.0
