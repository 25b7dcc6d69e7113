"""Stopped and killed runs of fine-tuning end with the numbers of one that was not, bit for bit."""

import importlib
import json
import multiprocessing
import os
import signal
import time

import pytest

from installed import skip_without
from some import some
from stalling import STALLED_S, Stall, impatient
from tuned import QUICK, assert_same, configured, finetune, silent_finetune

skip_without("trl", "peft", "datasets")

pytestmark = pytest.mark.slow

STEPS = 6
OPTIONS = {
    "sft": (f"method.optimiser.steps={STEPS}", "method.optimiser.schedule=cosine", "dataset.held_out=8"),
    # Steps that share replies are not parted.
    "grpo": (
        f"method.optimiser.steps={STEPS}",
        "method.optimiser.schedule=cosine",
        "dataset.held_out=8",
        "method.updates=2",
        "method.kl=0.05",
        "method.lora.dropout=0.1",
    ),
}


@pytest.fixture(scope="module")
def context():
    """Children are forked from a server that has imported what takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trl.trainer.grpo_trainer", "trl.trainer.sft_trainer", "datasets", "experiments"])
    return context


@pytest.fixture(scope="module", params=some(["grpo"], OPTIONS))
def method(request):
    return request.param


@pytest.fixture(scope="module")
def whole(method, proposer, tmp_path_factory):
    """A run that nothing happened to."""
    return finetune(tmp_path_factory.mktemp("whole"), proposer, method, *OPTIONS[method])


@pytest.mark.long  # killed at any moment, it goes on (below)
def test_told_to_stop_and_gone_on_with_it_ends_as_if_nothing_had_happened(
    method, whole, proposer, tmp_path, monkeypatch
):
    """Signals in the middle of the training; also between steps that share their replies."""
    from llmrl.run.metrics import MetricLog
    from llmrl.run.signals import Stopped

    log = MetricLog.log
    for stop_at in (1, 3):

        def told(self, kind, x, metrics, stop_at=stop_at, **counters):
            log(self, kind, x, metrics, **counters)
            if counters["updates"] == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(MetricLog, "log", told)
            with pytest.raises(Stopped):
                finetune(tmp_path, proposer, method, *OPTIONS[method])
    resumed = finetune(tmp_path, proposer, method, *OPTIONS[method])
    assert json.loads((resumed / "status.json").read_text())["attempt"] == 3
    assert_same(whole, resumed)


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "stalling", "at"),
    [("llmrl.llms.local.chat.LocalChat", "complete", 0), ("transformers.Trainer", "training_step", 4)],
)
def test_stalled_in_a_reply_or_a_step_it_ends_when_told_to(
    method, whole, proposer, tmp_path, monkeypatch, path, stalling, at
):
    from llmrl.run.signals import Stopped

    module, _, name = path.rpartition(".")
    owner = getattr(importlib.import_module(module), name)
    if method == "grpo" and stalling == "training_step":
        owner = importlib.import_module("trl").GRPOTrainer
    with monkeypatch.context() as patch:
        impatient(patch)
        stall = Stall(patch, owner, stalling, at, whole=True)
        with pytest.raises(Stopped):
            finetune(tmp_path, proposer, method, *OPTIONS[method])
        assert time.monotonic() - stall.signalled < STALLED_S / 2
    assert_same(whole, finetune(tmp_path, proposer, method, *OPTIONS[method]))


def test_killed_at_any_moment_it_goes_on_from_its_last_checkpoint(method, whole, proposer, tmp_path, context):
    """kill -9 of a process in training; half a checkpoint of weights beside the last whole one does not count."""
    process = context.Process(target=silent_finetune, args=(tmp_path, proposer, method, *OPTIONS[method]))
    process.start()
    deadline = time.monotonic() + 120

    def saved():
        """Steps whose weights are saved, by folder."""
        found = {path.parent for path in tmp_path.rglob("trainer/checkpoint-*/trainer_state.json")}
        return {int(folder.name.rpartition("-")[2]): folder for folder in found}

    while max(checkpoints := saved(), default=0) < 2:
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    last = max(checkpoints | saved())
    half = checkpoints[max(checkpoints)].with_name(f"checkpoint-{last + 1}")
    half.mkdir(parents=True)
    (half / "trainer_state.json").write_text("{")
    resumed = finetune(tmp_path, proposer, method, *OPTIONS[method])
    assert json.loads((resumed / "status.json").read_text())["attempt"] == 2 and not half.exists()
    assert_same(whole, resumed)


@pytest.mark.long
def test_a_finished_run_is_not_run_again_and_trials_are_shared(grpo, proposer, tmp_path, capsys):
    from experiments import run_experiment

    typed = [*QUICK["sft"], "method.optimiser.steps=1", "dataset.held_out=4"]
    config = configured(tmp_path, proposer, *typed, f"trials_dir={grpo.parents[2] / 'finetune_trials'}")
    first = run_experiment(config, typed)
    assert not (tmp_path / "finetune_trials").exists()
    assert run_experiment(config, typed) == first and "Already finished" in capsys.readouterr().out
