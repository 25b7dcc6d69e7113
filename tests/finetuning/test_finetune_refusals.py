"""What cannot work is said before anything is spent, and help costs nothing."""

import importlib.util
import subprocess
import sys

import pytest

from installed import skip_without
from llmrl.core.errors import ConfigError, LLMError
from tuned import QUICK, configured

skip_without("trl", "peft", "datasets")

pytestmark = pytest.mark.slow


def test_a_dry_run_plays_nothing_and_loads_nothing(proposer, tmp_path, capsys):
    from experiments import run_experiment

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
    from experiments import run_experiment

    root = tmp_path / "runs"
    with pytest.raises(error, match=message):
        run_experiment(configured(root, proposer, *QUICK["grpo"], *overrides), overrides)
    assert not any(p.read_text() for p in root.rglob("llm_calls.jsonl"))
    assert not list(root.rglob("finetune_trials"))  # nothing was played either


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
    from experiments import compose, run_experiment

    model = [] if overrides[0].startswith("llm=") else [f"llm.model={proposer}"]
    with pytest.raises(ConfigError, match=message):
        run_experiment(compose(f"output_root={tmp_path}", *model, *overrides, primary="finetune"), overrides)


def test_replies_that_would_be_cut_are_refused_before_the_model_is_asked(proposer, tmp_path):
    from experiments import run_experiment

    typed = [*QUICK["sft"], "llm.max_tokens=24"]
    with pytest.raises(ConfigError, match=r"the reply to learn takes \d+ tokens .* llm\.max_tokens=24 would cut it"):
        run_experiment(configured(tmp_path, proposer, *typed), typed)
    assert not list(tmp_path.rglob("llm_calls.jsonl"))


def test_a_missing_package_is_named(proposer, tmp_path, monkeypatch):
    from experiments import run_experiment

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "trl" else find(name, *a))
    with pytest.raises(ConfigError, match=r"needs trl: pip install 'llmrl\[finetune\]'"):
        run_experiment(configured(tmp_path, proposer), [])


def test_an_adapter_cannot_be_trained_on_top_of(proposer, tmp_path):
    from experiments import run_experiment

    with pytest.raises(ConfigError, match=r"leave it null, or merge"):
        run_experiment(configured(tmp_path, proposer, f"llm.adapter='{proposer}'"), [])


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
    several = ("seed=-1", "rerun=no"), ("dataset.share=2", "method.optimiser.learning_rate=-1", "llm.dtype=float16")
    for wrong in several:
        rejected = call("llm.model=/nope", *wrong)
        assert rejected.returncode == 1 and all(each.partition("=")[0] in rejected.stderr for each in wrong)
    assert not list(tmp_path.iterdir())
    wrong = call("method.optimiser.step=3")
    assert wrong.returncode == 1
    assert "method.optimiser has no option 'step'; it has: steps" in wrong.stderr
    assert "Did you mean steps?" in wrong.stderr
