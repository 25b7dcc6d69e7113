"""Invalid settings raise an error before anything is computed, and help loads no heavy packages."""

import importlib.util
import subprocess
import sys

import pytest

from installed import skip_without
from llmrl.core.errors import ConfigError, LLMError
from some import mark_long_except_every
from tuned import QUICK, compose_finetune

skip_without("trl", "peft", "datasets")

pytestmark = pytest.mark.slow


def test_dry_run_skips_playing(proposer, tmp_path, capsys):
    from experiments import run_experiment

    assert run_experiment(compose_finetune(tmp_path, proposer, "dry_run=true", "transfer=[other]"), []) is None
    output = capsys.readouterr().out
    assert "linear policy, 2 parameters in [-6, 6]" in output and "other tasks" in output and "grpo" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    mark_long_except_every(
        2,
        [
            (["llm.model=/no/such/folder"], LLMError, "/no/such/folder"),
            (["env=escape_room", "agent=linear"], ConfigError, "env=llmrl.*env=maze"),
            (["dataset.trials=0"], ConfigError, r"dataset\.trials.*dataset\.runs"),
            (["dataset=search", "dataset.runs=[/no/such]"], ConfigError, "dataset.runs.*proposals.jsonl"),
            (["dataset.examples=500"], ConfigError, r"dataset\.examples=500"),
            (["llm.max_tokens=8"], ConfigError, r"llm\.max_tokens=8"),
            (["llm.context_window=60"], LLMError, "context window"),
            (["llm.dtype=float16"], ConfigError, r"llm\.dtype=float16"),
            (["method.lora.targets=[nowhere]"], ConfigError, "down_proj"),
            (["method.lora.targets=[lm_head]"], ConfigError, "lm_head.*output"),
            (["method.samples=1"], ConfigError, "method.samples=1 .*2"),
            (["method.optimizer.batch=7"], ConfigError, "method.optimizer.batch=7"),
            (["method.prompts=100", "method.samples=8"], ConfigError, r"48.*method\.prompts=100"),
            (["rewards.low=1", "rewards.high=0"], ConfigError, "low=1 .*high=0"),
            (["+rewards.beauty=1"], ConfigError, "'beauty'"),
            (["method.optimizer.learning_rate=-1"], ConfigError, "method.optimizer.learning_rate=-1"),
        ],
    ),
)
def test_invalid_settings_raise_early(proposer, tmp_path, overrides, error, message):
    from experiments import run_experiment

    root = tmp_path / "runs"
    with pytest.raises(error, match=message):
        run_experiment(compose_finetune(root, proposer, *QUICK["grpo"], *overrides), overrides)
    assert not any(p.read_text() for p in root.rglob("llm_calls.jsonl"))
    assert not list(root.rglob("finetune_trials"))  # nothing was played either


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["llm=scripted"], "llm=local_chat"),
        (["llm=local_scorer_causal"], "llm=local_chat"),
        (["principal=random"], "principal=llm"),
        (["agent=random"], "agent=.*RandomAgent"),
        (["env=cleanup"], "env=llmrl.*env=maze"),
    ],
)
def test_untunable_parts_raise(proposer, tmp_path, overrides, message):
    from experiments import compose, run_experiment

    model = [] if overrides[0].startswith("llm=") else [f"llm.model={proposer}"]
    with pytest.raises(ConfigError, match=message):
        run_experiment(compose(f"output_root={tmp_path}", *model, *overrides, primary="finetune"), overrides)


def test_truncating_reply_limit_raises_early(proposer, tmp_path):
    from experiments import run_experiment

    arguments = [*QUICK["sft"], "llm.max_tokens=24"]
    with pytest.raises(ConfigError, match=r" \d+ tokens .*llm\.max_tokens=24"):
        run_experiment(compose_finetune(tmp_path, proposer, *arguments), arguments)
    assert not list(tmp_path.rglob("llm_calls.jsonl"))


def test_missing_package_raises(proposer, tmp_path, monkeypatch):
    from experiments import run_experiment

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "trl" else find(name, *a))
    with pytest.raises(ConfigError, match=r"'llmrl\[finetune\]'"):
        run_experiment(compose_finetune(tmp_path, proposer), [])


def test_nested_adapter_training_raises(proposer, tmp_path):
    from experiments import run_experiment

    with pytest.raises(ConfigError, match=r"llm\.adapter=.*null"):
        run_experiment(compose_finetune(tmp_path, proposer, f"llm.adapter='{proposer}'"), [])


@pytest.mark.long
def test_help_has_light_imports(tmp_path):
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
    output = call("--cfg", "job", "method=sft", "transfer=[maze,nim]").stdout
    assert "llmrl.finetuning.training_methods.SFT" in output and "nim:" in output
    mistakes = ("seed=-1", "rerun=no"), ("dataset.share=2", "method.optimizer.learning_rate=-1", "llm.dtype=float16")
    for wrong in mistakes:
        rejected = call("llm.model=/nope", *wrong)
        assert rejected.returncode == 1 and all(mistake.partition("=")[0] in rejected.stderr for mistake in wrong)
    assert not list(tmp_path.iterdir())
    wrong = call("method.optimizer.step=3")
    assert wrong.returncode == 1
    assert "method.optimizer " in wrong.stderr and "'step'" in wrong.stderr and " mean steps?" in wrong.stderr
