"""Proposers and principals whose chat model learns from its proposals (`llm/learn` with `principal=llm`)."""

import json

import numpy as np
import pytest

from experiments import find_run_folder, load_comparable_metrics, run_silently
from llmrl.core.errors import LlmrlError
from llmrl.experiment.model_export import export_model
from llmrl.run.run import Run
from tiny_proposers import make_proposer
from tuned import CONFIG_FOLDER

SEARCH = (
    f"hydra.searchpath=[file://{CONFIG_FOLDER / 'conf'}]",
    *("env=target", "trusted_modules=[target_game]", "agent=linear", "agent.bias=false", "agent.decimals=0"),
    *(f"prompts={CONFIG_FOLDER / 'prompts'}", "principal=llm", "principal.prompt=short", "principal.duplicates=accept"),
    *("principal.history=last", "principal.window=3", "llm=local_chat", "llm.max_tokens=50", "llm.max_invalid=null"),
    *("llm/learn=grpo", "llm.learn.group_size=8", "hardware.cores=1", "search.candidates=8", "search.episodes=2"),
    *("search.confirm_candidates=0", "search.evaluate_episodes=4", "search.target_return=null", "checkpoint_seconds=0"),
)


def run(root, proposer, *overrides):
    run_silently(*SEARCH, f"llm.model={proposer}", f"output_root={root}", *overrides)
    return find_run_folder(root)


def rows_of(folder, name):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if name in row]


@pytest.mark.long
@pytest.mark.slow
def test_proposals_improve(proposer, tmp_path):
    folder = run(
        tmp_path, proposer, "search.candidates=32", "search.iterations=16", "llm.learn.learning_rate=2e-3", "seed=0"
    )
    rows = rows_of(folder, "learn/reward")
    assert len(rows) == 16 and rows[0]["learn/log_prob_error"] < 1e-4
    returns = [row["search/return"] for row in rows]
    assert np.mean(returns[-4:]) > np.mean(returns[:4]) + 1
    assert (export_model(folder, None, merge=True, trusted=["target_game"]) / "config.json").is_file()


@pytest.mark.slow
def test_stopped_search_resumes_exactly(proposer, tmp_path):
    options = ("search.iterations=3", "llm.learn.tune=lora")
    whole = run(tmp_path / "whole", proposer, *options)
    assert (whole / "adapter" / "adapter_model.safetensors").is_file()
    original, n_points = Run.safe_point, []

    def stop_at_second(self, *arguments, **keywords):
        original(self, *arguments, **keywords)
        n_points.append(None)
        if len(n_points) == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Run, "safe_point", stop_at_second)
        run(tmp_path / "stopped", proposer, *options)
    assert load_comparable_metrics(run(tmp_path / "stopped", proposer, *options)) == load_comparable_metrics(whole)


@pytest.mark.slow
def test_mechanism_principal_learns(tmp_path):
    """Training includes invalid replies of a model that was created for another task."""
    folder, model = tmp_path / "design", make_proposer(tmp_path, [("a question", "a reply")], steps=1, window=8192)
    run_silently(
        *("env=fishery", "env.n_agents=4", "env.horizon=3", "agent=random", "principal=llm", "principal.history=last"),
        *("llm=local_chat", f"llm.model={model}", "llm.max_tokens=8", "llm/learn=grpo"),
        *("llm.max_invalid=null", "llm.learn.group_size=4", "design.candidates=4", "design.steps=2", "env.n_envs=4"),
        *("principal.repair_turns=0", f"output_root={folder}", "design.evaluations=0"),
        *("design.adapt_rounds=0", "design.validate_episodes=4"),
    )
    rows = rows_of(find_run_folder(folder), "learn/reward")
    assert len(rows) == 2 and rows[0]["learn/invalid"] > 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("search.candidates=12",), "group_size"),
        (("llm.learn.advantage=replay",), "replay"),
    ],
)
def test_incompatible_options_raise(proposer, tmp_path, overrides, message):
    with pytest.raises(LlmrlError, match=message):
        run(tmp_path, proposer, "search.iterations=1", *overrides)
