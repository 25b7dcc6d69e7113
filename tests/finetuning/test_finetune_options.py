"""Every option that is shipped composes, is accepted, and says all its fields."""

import inspect

import pytest

from experiments import compose
from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import options
from llmrl.experiment.finetune_application import check_values

METHODS, DATASETS, TASKS = (sorted(options(group)) for group in ("method", "dataset", "transfer"))


def composed(*overrides):
    return compose("llm.model=/models/some", *overrides, primary="finetune")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_methods_and_datasets_are_valid_together(method, dataset):
    runs = ["dataset.runs=[outputs]"] if dataset == "search" else []
    check_values(composed(f"method={method}", f"dataset={dataset}", *runs))


@pytest.mark.slow
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


def test_limits_of_another_task_are_returns():
    for limits in ("{low: bad}", "{low: 2, high: 1}"):
        with pytest.raises(ConfigError, match=r"transfer\.maze\.low"):
            check_values(composed("transfer=[maze]", f"transfer.maze={limits}"))
