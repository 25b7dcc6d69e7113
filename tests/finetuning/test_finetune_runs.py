"""End-to-end tests of fine-tuning with a small model."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import commands
from experiments import find_run_folder
from installed import skip_without
from llmrl.core.errors import ConfigError
from llmrl.llms.call_log import read_calls
from some import mark_long_except
from tuned import COMMON, QUICK, assert_equal_runs, compose_finetune, find_finetuning_folder, finetune, load_metrics

skip_without("trl", "peft", "datasets")

pytestmark = pytest.mark.slow


def train_summary(folder, name):
    return [line[name] for line in load_metrics(folder) if name in line]


@pytest.mark.long
def test_grpo_learns_rewarding_replies(grpo):
    """Replies with higher returns become likelier for the same prompts: the mean return rises."""
    returns = train_summary(grpo, "train/return")
    assert len(returns) == 24
    assert np.mean(returns[-6:]) > np.mean(returns[:6]) + 0.8
    assert len(train_summary(grpo, "train/reward_scaled_return")) == 24
    for line in load_metrics(grpo)[1:-1]:
        assert line["train/reward"] == pytest.approx(
            line["train/reward_scaled_return"] + 0.5 * line["train/reward_repeat"], abs=1e-6
        )


def test_sft_learns_dataset_replies(sft):
    losses = train_summary(sft, "train/loss")
    assert len(losses) == 12 and np.mean(losses[-3:]) < 0.8 * losses[0]
    rows = [json.loads(line) for line in (sft / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 48
    for row in rows:
        best = max(float(line.rpartition("-> ")[2]) for line in row["prompt"].splitlines() if "->" in line)
        assert row["best"] == pytest.approx(best, abs=0.006) and row["shown"] == 3
        if row["reply"] is not None:
            x, y = json.loads(row["reply"])["params"]
            assert -abs(x - 2) - abs(y + 3) > row["best"] - 0.01  # better, but for the noise


@pytest.mark.long
def test_run_folder_documents_run(grpo, proposer):
    names = {path.name for path in grpo.iterdir()}
    assert {
        "config.yaml",
        "status.json",
        "metrics.jsonl",
        "provenance.json",
        "summary.json",
        "evaluation.json",
    } <= names
    assert {"adapter", "train.jsonl", "held_out.jsonl", "llm_calls.jsonl", "run.log"} <= names
    assert "trainer" not in names  # checkpoints of weights are for resuming only
    adapter = {path.name for path in (grpo / "adapter").iterdir()}
    assert adapter == {"adapter_config.json", "adapter_model.safetensors", "trained_on.json"}
    status = json.loads((grpo / "status.json").read_text())
    assert status["state"] == "finished" and "+ adapter" in status["llm"] and status["env"] == "target"
    first, last = load_metrics(grpo)[0], load_metrics(grpo)[-1]
    assert (first["kind"], first["updates"]) == ("evaluation", 0) and (last["kind"], last["updates"]) == (
        "evaluation",
        24,
    )
    assert first["data/trials"] == 128 and first["data/prompts"] == 48 and first["data/trials_excluded"] == 0
    assert {"held_out/valid_rate", "held_out/score", "transfer_other/score"} <= first.keys() & last.keys()
    results = json.loads((grpo / "evaluation.json").read_text())
    assert list(results) == ["held_out", "other"]
    for result in results.values():
        assert {"before", "after", "difference", "random", "incumbent"} <= result.keys()
        for stage in ("before", "after", "random", "incumbent"):
            rate = result[stage]["valid_rate"]
            assert rate["n"] == 24 and rate["low"] <= rate["mean"] <= rate["high"]
        assert result["incumbent"]["repeat_rate"]["mean"] == result["random"]["valid_rate"]["mean"] == 1.0
    held = results["held_out"]
    assert held["after"]["score"]["mean"] == last["held_out/score"] == status["result"]
    assert held["difference"]["score"]["mean"] == pytest.approx(
        held["after"]["score"]["mean"] - held["before"]["score"]["mean"]
    )
    calls = list(read_calls(grpo / "llm_calls.jsonl"))
    assert len(calls) == 4 * 24 and {call["model"].partition(" + ")[0] for call in calls} >= {str(proposer)}


def test_commands_report_result_location(sft):
    from llmrl.cli.evaluate import build_parser, evaluate

    with pytest.raises(ConfigError, match=r"evaluation\.json"):
        evaluate(build_parser().parse_args([str(sft)]))


@pytest.mark.parametrize("method", mark_long_except(["sft"], ["grpo", "sft"]))
def test_adapter_plays_in_search(method, proposer, tmp_path, request):
    """`llmrl-train` uses the fine-tuned model with the prompts of its training."""
    from experiments import run

    adapter_folder = request.getfixturevalue(method)
    common = [item for item in COMMON if not item.startswith(("dataset", "evaluation", "rewards"))]
    model = ["llm=local_chat", f"llm.model={proposer}", f"llm.adapter='{adapter_folder / 'adapter'}'"]
    search = ["search.iterations=4", "search.episodes=2", "search.candidates=2", "principal=llm"]
    # A model that was trained for seconds writes what nobody can read, so that random vectors are needed, too.
    search += ["llm.max_invalid=null", "search.warmup=6"]
    result = run(*common, *model, *search, f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    assert result is not None and "+ adapter" in json.loads((folder / "status.json").read_text())["llm"]
    assert "adapter_digest" in (folder / "config.yaml").read_text()
    proposals = [json.loads(line) for line in (folder / "proposals.jsonl").read_text().splitlines()]
    assert len(proposals) == 6 + 8
    # And its proposals are data again.
    options = [
        "dataset=search",
        "dataset.trials=0",
        f"dataset.runs=[{tmp_path}]",
        "dataset.examples=1",
        "dataset.share=0.4",
        "dataset.prompts=8",
        "dataset.held_out=4",
    ]
    second = finetune(
        tmp_path / "second", proposer, "grpo", *options, "method.optimizer.steps=1", "rewards.low=-17", "rewards.high=0"
    )
    assert load_metrics(second)[0]["data/trials"] == 6 + 8
    assert "runs_digest" in (second / "config.yaml").read_text()


def test_constant_trials_have_finite_scale(proposer, tmp_path):
    from llmrl.core.seeding import Seeds
    from llmrl.experiment.models import build_model
    from llmrl.experiment.resources import RunResources
    from llmrl.finetuning.application import build_loop

    config = compose_finetune(tmp_path, proposer, "transfer=[maze,mountain_car]", "dataset.held_out=3")
    with build_loop(config, RunResources(config, build_model)) as loop:
        for task in loop.transfer_tasks:
            data = loop.dataset.for_transfer(16).prepare(task, tmp_path, Seeds(0))
            low, high = task.return_limits
            evaluated = loop._build_evaluated_task(task, data, replace(loop.rewards, low=low, high=high))
            assert (evaluated.scale.low, evaluated.scale.high) == task.return_limits and len(evaluated.prompts) == 3
            if task.name == "mountain_car":
                assert set(data.trial_values) == {-200.0}
                with pytest.raises(ConfigError, match="mountain_car"):
                    loop._build_evaluated_task(task, data, loop.rewards)


@pytest.mark.long
def test_seed_changes_training(proposer, sft, tmp_path):
    from llmrl.llms.local.lora import adapter_fingerprint

    second = finetune(tmp_path, proposer, "sft", "method.optimizer.steps=12", "seed=1")
    assert (second / "train.jsonl").read_text() != (sft / "train.jsonl").read_text()
    assert adapter_fingerprint(str(second / "adapter")) != adapter_fingerprint(str(sft / "adapter"))


@pytest.mark.long
def test_sweeps_and_searches_use_launcher(proposer, sft, tmp_path):
    """Jobs are composed first and executed in separate processes with equal results."""
    import yaml

    from llmrl.experiment.experiment import get_application

    arguments = [*COMMON[1:], f"output_root={tmp_path}", f"llm.model={proposer}", *QUICK["sft"], "seed=0"]
    command = [sys.executable, "-m", "llmrl.cli.finetune", "--config-dir", str(Path(__file__).parent / "conf"), "-m"]
    command += [*arguments, "method.optimizer.steps=12"]

    def swept(*words):
        return commands.run([*command, *words], capture_output=True, text=True, timeout=180)

    done = swept()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 finished" in done.stdout
    (log,) = (path.read_text() for path in (tmp_path / ".sweeps").rglob("*.log"))
    assert log.startswith("llmrl-finetune ")
    folder = find_finetuning_folder(tmp_path)
    assert get_application(yaml.safe_load((folder / "config.yaml").read_text())).command == "llmrl-finetune"
    assert_equal_runs(sft, folder)
    # A search finds the run that is there, and names the command that it was typed with.
    search = ("hydra/sweeper=optuna", "method.lora.rank=choice(16)", "hydra.sweeper.trials=1")
    search_process = swept(*search)
    assert search_process.returncode == 0, search_process.stdout + search_process.stderr
    assert ": llmrl-finetune --config-dir" in search_process.stdout and folder == find_finetuning_folder(tmp_path)
    failed = swept(*search, "hydra.sweeper.trials=0")
    assert failed.returncode == 1 and failed.stderr.startswith("\nllmrl-finetune: hydra.sweeper.trials=0"), failed
