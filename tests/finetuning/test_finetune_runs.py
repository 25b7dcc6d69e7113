"""Fine-tuning from end to end, with a model so small that it can be trained here."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiments import comparable_metrics, only_run_folder
from llmrl.core.errors import ConfigError, LLMError
from tuned import COMMON, QUICK, configured, finetune, folder_of

for package in ("trl", "peft", "datasets"):
    pytest.importorskip(package)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def grpo(proposer, tmp_path_factory):
    """A finished run: replies are rewarded for their return alone."""
    root = tmp_path_factory.mktemp("grpo")
    only = [f"rewards.{name}=0" for name in ("valid", "inside", "improvement")]
    return finetune(
        root, proposer, "grpo", "method.optimiser.steps=24", *only, "transfer=[other]", "checkpoint_seconds=99"
    )


@pytest.fixture(scope="module")
def sft(proposer, tmp_path_factory):
    return finetune(tmp_path_factory.mktemp("sft"), proposer, "sft", "method.optimiser.steps=12")


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def trained(folder, name):
    return [line[name] for line in lines(folder) if name in line]


def test_grpo_learns_what_is_rewarded(grpo):
    """Of the same prompts' replies those with higher returns become likelier: the mean return rises."""
    returns = trained(grpo, "train/return")
    assert len(returns) == 24
    assert np.mean(returns[-6:]) > np.mean(returns[:6]) + 0.8
    assert len(trained(grpo, "train/reward_scaled_return")) == 24
    for line in lines(grpo)[1:-1]:
        assert line["train/reward"] == pytest.approx(
            line["train/reward_scaled_return"] + 0.5 * line["train/reward_repeat"], abs=1e-6
        )


def test_sft_learns_the_replies_of_the_data(sft):
    losses = trained(sft, "train/loss")
    assert len(losses) == 12 and np.mean(losses[-3:]) < 0.8 * losses[0]
    rows = [json.loads(line) for line in (sft / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 48
    for row in rows:
        best = max(float(line.rpartition("-> ")[2]) for line in row["prompt"].splitlines() if "->" in line)
        assert row["best"] == pytest.approx(best, abs=0.006) and row["shown"] == 3
        if row["reply"] is not None:
            x, y = json.loads(row["reply"])["params"]
            assert -abs(x - 2) - abs(y + 3) > row["best"] - 0.01  # better, but for the noise


def test_a_run_folder_tells_all_of_it(grpo, proposer):
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
    first, last = lines(grpo)[0], lines(grpo)[-1]
    assert first["step"] == 0 and last["step"] == 24
    assert first["data/trials"] == 128 and first["data/prompts"] == 48 and first["data/trials_left_out"] == 0
    assert {"held_out/valid_rate", "held_out/score", "transfer_other/score"} <= first.keys() & last.keys()
    results = json.loads((grpo / "evaluation.json").read_text())
    assert list(results) == ["held_out", "other"]
    for result in results.values():
        assert {"before", "after", "difference", "random", "incumbent"} <= result.keys()
        for who in ("before", "after", "random", "incumbent"):
            rate = result[who]["valid_rate"]
            assert rate["n"] == 24 and rate["low"] <= rate["mean"] <= rate["high"]
        assert result["incumbent"]["repeat_rate"]["mean"] == result["random"]["valid_rate"]["mean"] == 1.0
    held = results["held_out"]
    assert held["after"]["score"]["mean"] == last["held_out/score"] == status["result"]
    assert held["difference"]["score"]["mean"] == pytest.approx(
        held["after"]["score"]["mean"] - held["before"]["score"]["mean"]
    )
    calls = [json.loads(line) for line in (grpo / "llm_calls.jsonl").read_text().splitlines()]
    assert len(calls) == 4 * 24 and {call["model"].partition(" + ")[0] for call in calls} >= {str(proposer)}


def test_other_commands_say_where_its_results_are(sft):
    from llmrl.cli.evaluate import evaluate, parser

    with pytest.raises(ConfigError, match=r"evaluates itself: see its evaluation\.json"):
        evaluate(parser().parse_args([str(sft)]))


def test_the_adapter_plays_on_in_a_search(grpo, proposer, tmp_path):
    """The command that the run prints: the tuned model is asked by llmrl-train, with the prompts it was trained on."""
    from experiments import run

    common = [item for item in COMMON if not item.startswith(("dataset", "evaluation", "rewards"))]
    model = ["llm=local_chat", f"llm.model={proposer}", f"llm.adapter='{grpo / 'adapter'}'"]
    search = ["search.iterations=4", "search.episodes=2", "search.candidates=2", "principal=llm"]
    result = run(*common, *model, *search, f"output_root={tmp_path}")
    folder = only_run_folder(tmp_path)
    assert result is not None and "+ adapter" in json.loads((folder / "status.json").read_text())["llm"]
    assert "adapter_digest" in (folder / "config.yaml").read_text()
    proposals = [json.loads(line) for line in (folder / "proposals.jsonl").read_text().splitlines()]
    assert len(proposals) == 8
    # And its proposals are data again.
    more = [
        "dataset=search",
        "dataset.trials=0",
        f"dataset.runs=[{tmp_path}]",
        "dataset.examples=2",
        "dataset.share=0.4",
        "dataset.prompts=8",
        "dataset.held_out=4",
    ]
    second = finetune(
        tmp_path / "second", proposer, "grpo", *more, "method.optimiser.steps=1", "rewards.low=-17", "rewards.high=0"
    )
    assert lines(second)[0]["data/trials"] == 8
    assert "runs_digest" in (second / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("method", "options"),
    [("sft", ()), ("grpo", ("method.updates=2", "method.kl=0.05", "method.lora.dropout=0.1"))],
)
def test_told_to_stop_and_gone_on_with_it_ends_as_if_nothing_had_happened(
    proposer, tmp_path, method, options, monkeypatch
):
    """Signals in the middle of the training; also between steps that share their replies."""
    from llmrl.run.metrics import MetricLog
    from llmrl.run.run import Stopped

    options = ("method.optimiser.steps=4", "method.optimiser.schedule=cosine", *options)
    whole = finetune(tmp_path / "whole", proposer, method, *options)
    log = MetricLog.log
    for stop_at in (1, 3):

        def told(self, step, metrics, stop_at=stop_at, **axes):
            log(self, step, metrics, **axes)
            if step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(MetricLog, "log", told)
            with pytest.raises(Stopped):
                finetune(tmp_path / "stopped", proposer, method, *options)
    resumed = finetune(tmp_path / "stopped", proposer, method, *options)
    assert json.loads((resumed / "status.json").read_text())["attempt"] == 3
    assert_same(whole, resumed)


def assert_same(one, other):
    """Metrics, adapter and results, bit for bit."""
    ours, theirs = comparable_metrics(one), comparable_metrics(other)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert {k: v for k, v in a.items() if not k.startswith("spent/")} == {
            k: v for k, v in b.items() if not k.startswith("spent/")
        }
    for name in ("adapter/adapter_model.safetensors", "adapter/adapter_config.json", "evaluation.json", "train.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_killed_at_any_moment_it_goes_on_from_its_last_checkpoint(proposer, tmp_path):
    """kill -9 of a real process in training; half a checkpoint of weights beside the last whole one does not count."""
    options = ("method.optimiser.steps=5", "dataset.held_out=8")
    whole = finetune(tmp_path / "whole", proposer, "grpo", *options)
    typed = [*COMMON[1:], f"output_root={tmp_path / 'killed'}", f"llm.model={proposer}", *QUICK["grpo"], *options]
    command = [sys.executable, "-m", "llmrl.cli.finetune", "--config-dir", str(Path(__file__).parent / "conf"), *typed]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (saved := list((tmp_path / "killed").rglob("trainer/checkpoint-3/trainer_state.json"))):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    half = saved[0].parents[1] / "checkpoint-4"
    half.mkdir(exist_ok=True)
    (half / "trainer_state.json").write_text("{")
    assert_same(whole, finetune(tmp_path / "killed", proposer, "grpo", *options))


def test_a_finished_run_is_not_run_again_and_trials_are_shared(grpo, proposer, tmp_path, capsys):
    from llmrl.cli.finetune import run_experiment

    typed = [*QUICK["sft"], "method.optimiser.steps=1", "dataset.held_out=4"]
    config = configured(tmp_path, proposer, *typed, f"trials_dir={grpo.parents[2] / 'finetune_trials'}")
    first = run_experiment(config, typed)
    assert not (tmp_path / "finetune_trials").exists()
    assert run_experiment(config, typed) == first and "Already finished" in capsys.readouterr().out


def test_tasks_where_random_trials_are_all_the_same_have_a_scale(proposer, tmp_path):
    from llmrl.cli.finetune_parts import build
    from llmrl.core.seeding import Seeds

    with build(configured(tmp_path, proposer, "transfer=[maze,mountain_car]", "dataset.held_out=3"), None) as parts:
        for task in parts.loop.transfer:
            data = parts.loop.dataset.for_transfer(16).prepare(task, tmp_path, Seeds(0))
            asked = parts.loop._asked(task, data, parts.loop.rewards.scaled(task.limits))
            assert (asked.scale.low, asked.scale.high) == task.limits and len(asked.questions) == 3
            if task.name == "mountain_car":
                assert set(data.values) == {-200.0}
                with pytest.raises(ConfigError, match=r"mountain_car: .*leaves no room"):
                    parts.loop._asked(task, data, parts.loop.rewards)


def test_a_dry_run_plays_nothing_and_loads_nothing(proposer, tmp_path, capsys):
    from llmrl.cli.finetune import run_experiment

    assert run_experiment(configured(tmp_path, proposer, "dry_run=true", "transfer=[other]"), []) is None
    printed = capsys.readouterr().out
    assert "linear policy, 2 numbers from -6 to 6" in printed and "other tasks" in printed and "grpo" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["llm.model=/no/such/folder"], LLMError, "there is no folder /no/such/folder"),
        (["env=escape_room", "agent=linear"], ConfigError, "no environment of Gymnasium"),
        (["dataset.trials=0"], ConfigError, "there is no data"),
        (["dataset=search", "dataset.runs=[/no/such]"], ConfigError, "dataset.runs: there is no proposals.jsonl"),
        (["dataset.examples=500"], ConfigError, r"dataset\.examples=500"),
        (["llm.max_tokens=8"], ConfigError, r"llm\.max_tokens=8 cuts every valid reply"),
        (["llm.context_window=60"], LLMError, "context window"),
        (["llm.dtype=float16"], ConfigError, "use bfloat16 or float32"),
        (["method.lora.targets=[nowhere]"], ConfigError, r"no such layers; it has down_proj"),
        (["method.lora.targets=[lm_head]"], ConfigError, "cannot have an adapter"),
        (["method.samples=1"], ConfigError, "use >= 2"),
        (["method.optimiser.batch=7"], ConfigError, "no multiple of method.optimiser.batch=7"),
        (["method.prompts=100", "method.samples=8"], ConfigError, r"48 prompts, and a step takes method\.prompts=100"),
        (["rewards.low=1", "rewards.high=0"], ConfigError, "leaves no room"),
        (["+rewards.beauty=1"], ConfigError, "rewards has no option 'beauty'"),
        (["method.optimiser.learning_rate=-1"], ConfigError, "method.optimiser.learning_rate=-1"),
    ],
)
def test_what_cannot_work_is_refused_before_the_model_is_asked(proposer, tmp_path, overrides, error, message):
    from llmrl.cli.finetune import run_experiment

    root = tmp_path / "runs"
    with pytest.raises(error, match=message):
        run_experiment(configured(root, proposer, *QUICK["grpo"], *overrides), overrides)
    assert not list(root.rglob("llm_calls.jsonl")) or not any(p.read_text() for p in root.rglob("llm_calls.jsonl"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["llm=scripted"], "trains a model whose weights are here"),
        (["llm=local_scorer_causal"], "trains a model whose weights are here"),
        (["principal=random"], "trains the language model of principal=llm"),
        (["agent=random"], "agent=.*RandomAgent has no parameters"),
        (["env=cleanup"], "no environment of Gymnasium"),
    ],
)
def test_parts_that_cannot_be_tuned_are_refused(proposer, tmp_path, overrides, message):
    from experiments import compose
    from llmrl.cli.finetune import run_experiment

    model = [] if overrides[0].startswith("llm=") else [f"llm.model={proposer}"]
    with pytest.raises(ConfigError, match=message):
        run_experiment(compose(f"output_root={tmp_path}", *model, *overrides, primary="finetune"), overrides)


def test_a_missing_package_is_named(proposer, tmp_path, monkeypatch):
    from llmrl.cli.finetune import run_experiment

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "trl" else find(name, *a))
    with pytest.raises(ConfigError, match=r"needs trl: pip install 'llmrl\[finetune\]'"):
        run_experiment(configured(tmp_path, proposer), [])


def test_an_adapter_cannot_be_trained_on_top_of(proposer, sft, tmp_path):
    from llmrl.cli.finetune import run_experiment

    with pytest.raises(ConfigError, match=r"leave it null, or merge"):
        run_experiment(configured(tmp_path, proposer, f"llm.adapter='{sft / 'adapter'}'"), [])


def test_another_seed_is_another_training(proposer, sft, tmp_path):
    from llmrl.llms.local.adapter import adapter_fingerprint

    other = finetune(tmp_path, proposer, "sft", "method.optimiser.steps=12", "seed=1")
    assert (other / "train.jsonl").read_text() != (sft / "train.jsonl").read_text()
    assert adapter_fingerprint(str(other / "adapter")) != adapter_fingerprint(str(sft / "adapter"))


def test_the_command_is_light_and_helps(tmp_path):
    """Help, config and a mistyped field need none of the heavy packages."""
    code = (
        "import sys; from llmrl.cli import finetune; sys.argv = ['llmrl-finetune', *sys.argv[1:]]\n"
        "try:\n    finetune.main()\n"
        "finally:\n    print('HEAVY', sorted({'torch', 'trl', 'peft', 'datasets'} & set(sys.modules)))\n"
    )

    def call(*arguments):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path)
        assert "HEAVY []" in done.stdout, done
        return done

    assert "llmrl-finetune" in call("--help").stdout
    shown = call("--cfg", "job", "method=sft", "transfer=[maze,nim]").stdout
    assert "llmrl.finetuning.sft.SFT" in shown and "nim:" in shown
    wrong = call("method.optimiser.step=3")
    assert wrong.returncode == 1
    assert "method.optimiser has no option 'step'; it has: steps" in wrong.stderr
    assert "Did you mean steps?" in wrong.stderr


def test_a_sweep_goes_through_the_launcher(proposer, sft, tmp_path):
    """As a cluster's jobs are made: composed first, each computed in a process of its own, with the same numbers."""
    import yaml

    from llmrl.cli.apps import app_of

    typed = [*COMMON[1:], f"output_root={tmp_path}", f"llm.model={proposer}", *QUICK["sft"], "seed=0"]
    command = [sys.executable, "-m", "llmrl.cli.finetune", "--config-dir", str(Path(__file__).parent / "conf"), "-m"]
    command += [*typed, "method.optimiser.steps=12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 finished" in done.stdout
    (log,) = (path.read_text() for path in (tmp_path / ".sweeps").rglob("*.log"))
    assert log.startswith("llmrl-finetune ")
    folder = folder_of(tmp_path)
    assert app_of(yaml.safe_load((folder / "config.yaml").read_text())).name == "llmrl-finetune"
    assert_same(sft, folder)
