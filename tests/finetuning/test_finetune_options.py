"""Every option that is shipped composes, is accepted, and says all its fields."""

import inspect

import pytest

from experiments import compose
from llmrl.cli.build import Builder
from llmrl.cli.compose import options
from llmrl.cli.finetune_parts import check_values
from llmrl.core.errors import ConfigError
from llmrl.finetuning.rewards import REWARDS

METHODS, DATASETS, TASKS = (sorted(options(group)) for group in ("method", "dataset", "transfer"))


def composed(*overrides):
    return compose("llm.model=/models/some", *overrides, primary="finetune")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_methods_and_datasets_are_valid_together(method, dataset):
    runs = ["dataset.runs=[outputs]"] if dataset == "search" else []
    check_values(composed(f"method={method}", f"dataset={dataset}", *runs))


@pytest.mark.parametrize("task", TASKS)
def test_other_tasks_are_parts_of_the_same_names(task):
    config = composed(f"transfer=[{task}]")
    check_values(config)
    (chosen,) = config["transfer"].values()
    assert list(config["transfer"]) == [task]
    assert chosen["env"] == compose(f"env={task}")["env"] and set(chosen) == {"env", "agent", "low", "high"}
    assert chosen["low"] < chosen["high"]


@pytest.mark.parametrize("method", METHODS)
def test_every_argument_has_its_field(method):
    """Nothing can be set that is not written in the option, and the other way round."""
    config = composed(f"method={method}")
    builder = Builder()
    nodes = [config[group] for group in ("method", "dataset", "rewards", "evaluation")]
    nodes += [config["method"]["lora"], config["method"]["optimiser"]]
    for node in nodes:
        arguments = set(inspect.signature(builder.locate(node["_target_"], "")).parameters)
        assert arguments == set(node) - {"_target_"}


def test_the_published_setting_is_the_published_one():
    config = composed("method=grpo_published")
    method, data, rewards = config["method"], config["dataset"], config["rewards"]
    assert (method["lora"]["rank"], method["lora"]["alpha"], method["lora"]["dropout"]) == (8, 32, 0.1)
    assert {"v_proj", "gate_proj"}.isdisjoint(method["lora"]["targets"])
    assert method["prompts"] * method["samples"] == 8 * 16 and method["samples"] == 4
    # 4,000 parameters, a fifth of them held out; five times through the rest.
    assert method["optimiser"]["steps"] * method["prompts"] == 5 * data["prompts"] == 5 * 0.8 * data["trials"]
    assert (data["low"], data["high"], data["examples"], data["episodes"]) == (-10, 10, 1, 20)
    assert config["principal"]["count_from"] == 0  # after one trial: iteration 1
    assert rewards["parity"] and rewards["rollouts"] == 1 and config["llm"]["max_tokens"] == 256
    assert {name: rewards[name] for name in REWARDS} == {
        "valid": 1, "inside": 0, "scaled_return": 1, "improvement": 1, "rank": 0, "repeat": 0,
    }  # fmt: skip


def test_limits_of_another_task_are_returns():
    for limits in ("{low: bad}", "{low: 2, high: 1}"):
        with pytest.raises(ConfigError, match=r"transfer\.maze\.low"):
            check_values(composed("transfer=[maze]", f"transfer.maze={limits}"))
