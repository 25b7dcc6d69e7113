"""Runs of `agent=llm_ppo`: complete runs, killed runs, and runs that start from another run."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

import commands
from experiments import compose, find_run_folder, load_comparable_metrics, run_silently
from llmrl.core.errors import ConfigError, Diverged, LLMError
from llmrl.run.artifacts import load_saved_state
from llmrl.run.status import read_status
from tiny_models import make_model_for_env

SIZE = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 320}
ENV = ("env=goto_red_ball", "env.actions=restricted", "env.history=1")
RUN = (
    *ENV,
    "env.n_envs=4",
    "agent=llm_ppo",
    "agent.head_hidden=[8]",
    "agent.ppo.learning_rate=1e-3",
    "agent.ppo.minibatch_size=16",
    "llm=local_scorer_causal",
    "learn.rollout_steps=8",
    "learn.env_steps=96",
    "learn.evaluate_episodes=4",
    "learn.evaluation_interval=2",
    "checkpoint_seconds=0",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model_for_env(tmp_path_factory.mktemp("models") / "small", *ENV, "env.n_envs=4", **SIZE)


def kill_at(step, *overrides):
    """Kill the run at the gradient step with this number."""
    from llmrl.algorithms.optimizer_step import OptimizerStep

    step_count, ordinary = [0], OptimizerStep.step

    def step_or_die(self, batch, loss):
        step_count[0] += 1
        if step_count[0] == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return ordinary(self, batch, loss)

    OptimizerStep.step = step_or_die
    run_silently(*overrides)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("tune", ["full", "lora"])
def test_resume_within_update_reproduces_metrics(tmp_path, model, tune):
    overrides = (*RUN, f"llm.model={model}", f"agent.tune={tune}")
    run_silently(*overrides, f"output_root={tmp_path / 'whole'}")
    # 4 epochs of 2 minibatches: the third step of the second update, then the last but one of the third.
    for step in (11, 15):
        process = commands.Process(target=kill_at, args=(step, *overrides, f"output_root={tmp_path / 'killed'}"))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    run_silently(*overrides, f"output_root={tmp_path / 'killed'}")
    reference, resume_folder = find_run_folder(tmp_path / "whole"), find_run_folder(tmp_path / "killed")
    assert read_status(resume_folder).attempt == 3
    assert load_comparable_metrics(reference) == load_comparable_metrics(resume_folder)
    first, second = (load_saved_state(folder)[1]["agents"][0]["policy"] for folder in (reference, resume_folder))
    assert first.keys() == second.keys()
    assert all(torch.equal(x, second[name]) for name, x in first.items())


@pytest.mark.long
@pytest.mark.slow
def test_non_finite_rewards_end_run(monkeypatch, tmp_path, model):
    from llmrl.envs.babyai.vec_env import BabyAIEnv

    overrides = (*RUN, f"llm.model={model}", "learn.evaluation_interval=100")
    ordinary, steps = BabyAIEnv.step, {}

    def poisoned(self, action):
        step = ordinary(self, action)
        steps[id(self)] = steps.get(id(self), 0) + 1
        if steps[id(self)] > 16:  # the third update's
            step.reward[:] = float("nan")
        return step

    monkeypatch.setattr(BabyAIEnv, "step", poisoned)
    with pytest.raises(Diverged, match="intact"):
        run_silently(*overrides, f"output_root={tmp_path / 'failed'}")
    failed = find_run_folder(tmp_path / "failed")
    iteration, state = load_saved_state(failed)
    assert (read_status(failed).state, iteration) == ("failed", 2)
    assert all(x.isfinite().all() for x in state["agents"][0]["policy"].values())
    monkeypatch.undo()
    for name in ("failed", "whole"):
        run_silently(*overrides, f"output_root={tmp_path / name}")
    assert (read_status(failed).state, read_status(failed).attempt) == ("finished", 2)
    assert load_comparable_metrics(failed) == load_comparable_metrics(find_run_folder(tmp_path / "whole"))


def test_run_starts_from_pretrained_weights(tmp_path, model):
    overrides = (*RUN, f"llm.model={model}", f"output_root={tmp_path}")
    run_silently(*overrides, "name=first")
    first = find_run_folder(tmp_path)
    frozen = ("agent.ppo.learning_rate=1e-12", "agent.ppo.epochs=1")
    run_silently(*overrides, "name=second", f"agent.init_from='{first}'", *frozen)
    [second] = (tmp_path / "second").glob("*/s0")
    x_weights, y_weights = (load_saved_state(folder)[1]["agents"][0]["policy"] for folder in (first, second))
    assert all(torch.allclose(x, y_weights[name], atol=1e-6) for name, x in x_weights.items())
    with pytest.raises(ConfigError, match=r"agent\.init_from="):
        run_silently(*overrides, "name=third", f"agent.init_from='{first}'", "agent.head_hidden=[9]")


@pytest.mark.parametrize("tune", ["lora", "nothing"])
def test_checkpoint_requires_its_base_model(tmp_path, model, tune):
    from llmrl.experiment.models import build_llm
    from llmrl.experiment.parts import build_parts

    def agent(folder):
        config = compose(*RUN, f"llm.model={folder}", f"agent.tune={tune}")
        parts = build_parts(config, build_llm(config, None))
        parts.close()
        return parts.agents[0]

    state = agent(model).state_dict()
    folder = shutil.copytree(model, tmp_path / "moved")
    agent(folder).load_state_dict(state)
    shutil.rmtree(folder)
    make_model_for_env(folder, *ENV, "env.n_envs=4", "seed=1", **SIZE)
    with pytest.raises(ConfigError, match=rf"llm.model={folder}.*resume=false"):
        agent(folder).load_state_dict(state)
    agent(folder).load_state_dict({**state, "model": None})  # of a model of the hub


def test_evaluates_frozen_model(tmp_path, model):
    run_silently(*RUN, f"llm.model={model}", f"output_root={tmp_path}", "agent.tune=nothing", "play.episodes=6")
    results = json.loads((find_run_folder(tmp_path) / "results.json").read_text())
    assert results["episodes"] == 6
    assert "local scorer" in results["llm"]


def test_invalid_models_create_no_run(tmp_path, model):
    with pytest.raises(LLMError, match="no folder"):
        run_silently(*RUN, "llm.model=./nowhere", f"output_root={tmp_path / 'a'}")
    with pytest.raises(ConfigError, match="scores texts"):
        run_silently(*RUN, "llm=scripted", f"output_root={tmp_path / 'b'}")


@pytest.mark.slow
def test_unavailable_model_gives_single_line_error(tmp_path):
    train = Path(sys.executable).parent / "llmrl-train"
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [train, *RUN, "llm.model=no/such-model", f"output_root={tmp_path / 'runs'}"]
    process = commands.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert process.returncode == 1
    assert "no/such-model" in process.stderr and "HF_HUB_OFFLINE=1" in process.stderr
    assert "Traceback" not in process.stderr


def test_long_prompts_end_run_with_advice(tmp_path):
    folder = make_model_for_env(tmp_path / "short", *ENV, **SIZE, longest=32)
    overrides = (*RUN, f"llm.model={folder}", f"output_root={tmp_path}")
    with pytest.raises(ConfigError, match=r" \d+ tokens .* 32; .*env\.history.*: '"):
        run_silently(*overrides)
