"""Stopped and killed fine-tuning runs have bitwise the results of uninterrupted runs."""

import importlib
import json
import multiprocessing
import os
import signal
import time

import pytest

from installed import skip_without
from some import mark_long_except
from stalling import TOTAL_STALL_S, StallingMethod, shorten_stop_timeouts
from tuned import QUICK, assert_equal_runs, compose_finetune, finetune, finetune_silently

skip_without("trl", "peft", "datasets")

pytestmark = pytest.mark.slow

STEPS = 6
OPTIONS = {
    "sft": (f"method.optimizer.steps={STEPS}", "method.optimizer.schedule=cosine", "dataset.held_out=8"),
    # Steps that share replies are not parted.
    "grpo": (
        f"method.optimizer.steps={STEPS}",
        "method.optimizer.schedule=cosine",
        "dataset.held_out=8",
        "method.updates=2",
        "method.kl=0.05",
        "method.lora.dropout=0.1",
    ),
}


@pytest.fixture(scope="module")
def context():
    """Return a context whose processes are forked from a server with preloaded modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trl.trainer.grpo_trainer", "trl.trainer.sft_trainer", "datasets", "experiments"])
    return context


@pytest.fixture(scope="module", params=mark_long_except(["sft"], OPTIONS))
def method(request):
    return request.param


@pytest.fixture(scope="module")
def reference_run(method, proposer, tmp_path_factory):
    """Return the folder of an uninterrupted run."""
    return finetune(tmp_path_factory.mktemp("whole"), proposer, method, *OPTIONS[method])


def saved_checkpoints(root):
    """Return the folders of saved weights by step."""
    checkpoints = {path.parent for path in root.rglob("trainer/checkpoint-*/trainer_state.json")}
    return {int(folder.name.rpartition("-")[2]): folder for folder in checkpoints}


def tear_checkpoint(checkpoint, step):
    """Write a partial checkpoint of a later step next to `checkpoint` and return its folder."""
    half_checkpoint = checkpoint.with_name(f"checkpoint-{step}")
    half_checkpoint.mkdir(parents=True)
    (half_checkpoint / "trainer_state.json").write_text("{")
    return half_checkpoint


def test_stopped_run_matches_uninterrupted_run(method, reference_run, proposer, tmp_path, monkeypatch):
    """Signals arrive during training, also between steps that share replies.

    Half of a later checkpoint is ignored.
    """
    from llmrl.run.metrics import MetricLog
    from llmrl.run.signals import Stopped

    log = MetricLog.log
    for target_return in (1, 3):

        def tell_and_stop(self, kind, x, metrics, target_return=target_return, **counters):
            log(self, kind, x, metrics, **counters)
            if counters["updates"] == target_return:
                os.kill(os.getpid(), signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(MetricLog, "log", tell_and_stop)
            with pytest.raises(Stopped):
                finetune(tmp_path, proposer, method, *OPTIONS[method])
    last = max(saved_checkpoints(tmp_path))
    half_checkpoint = tear_checkpoint(saved_checkpoints(tmp_path)[last], last + 1)
    folder = finetune(tmp_path, proposer, method, *OPTIONS[method])
    assert json.loads((folder / "status.json").read_text())["attempt"] == 3 and not half_checkpoint.exists()
    assert_equal_runs(reference_run, folder)


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "stalling", "at"),
    [("llmrl.llms.local.chat.LocalChat", "complete", 0), ("transformers.Trainer", "training_step", 4)],
)
def test_stalling_run_stops_on_signal(method, reference_run, proposer, tmp_path, monkeypatch, path, stalling, at):
    from llmrl.run.signals import Stopped

    module, _, name = path.rpartition(".")
    owner = getattr(importlib.import_module(module), name)
    if method == "grpo" and stalling == "training_step":
        owner = importlib.import_module("trl").GRPOTrainer
    with monkeypatch.context() as patch:
        shorten_stop_timeouts(patch)
        stall = StallingMethod(patch, owner, stalling, at, whole=True)
        with pytest.raises(Stopped):
            finetune(tmp_path, proposer, method, *OPTIONS[method])
        assert time.monotonic() - stall.signaled < TOTAL_STALL_S / 2
    assert_equal_runs(reference_run, finetune(tmp_path, proposer, method, *OPTIONS[method]))


@pytest.mark.long
def test_sigkill_resumes_from_last_checkpoint(method, reference_run, proposer, tmp_path, context):
    """A killed process resumes from its last complete checkpoint; half of a later checkpoint is ignored."""
    process = context.Process(target=finetune_silently, args=(tmp_path, proposer, method, *OPTIONS[method]))
    process.start()
    deadline = time.monotonic() + 120

    while max(checkpoints := saved_checkpoints(tmp_path), default=0) < 2:
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    last = max(checkpoints | saved_checkpoints(tmp_path))
    half = tear_checkpoint(checkpoints[max(checkpoints)], last + 1)
    folder = finetune(tmp_path, proposer, method, *OPTIONS[method])
    assert json.loads((folder / "status.json").read_text())["attempt"] == 2 and not half.exists()
    assert_equal_runs(reference_run, folder)


@pytest.mark.long
def test_completed_run_is_skipped(grpo, proposer, tmp_path, capsys):
    from experiments import run_experiment

    arguments = [*QUICK["sft"], "method.optimizer.steps=1", "dataset.held_out=4"]
    config = compose_finetune(tmp_path, proposer, *arguments, f"trials_dir={grpo.parents[2] / 'finetune_trials'}")
    first = run_experiment(config, arguments)
    assert not (tmp_path / "finetune_trials").exists()
    assert run_experiment(config, arguments) == first and "Already finished" in capsys.readouterr().out
