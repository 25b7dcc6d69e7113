"""Shipped fine-tuning options: composition, validation and completeness of fields."""

import inspect

import pytest

from experiments import compose
from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_options
from llmrl.finetuning.application import check_values
from some import mark_long_except_every

METHODS, DATASETS, TASKS = (sorted(load_options(group)) for group in ("method", "dataset", "transfer"))


def compose_finetuning(*overrides):
    return compose("llm.model=/models/some", *overrides, primary="finetune")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_methods_and_datasets_combine(method, dataset):
    runs = ["dataset.runs=[outputs]"] if dataset == "search" else []
    check_values(compose_finetuning(f"method={method}", f"dataset={dataset}", *runs))


@pytest.mark.slow
@pytest.mark.parametrize("task", mark_long_except_every(4, TASKS))
def test_task_options_match_part_names(task):
    config = compose_finetuning(f"transfer=[{task}]")
    check_values(config)
    (transfer_task,) = config["transfer"].values()
    assert list(config["transfer"]) == [task]
    assert transfer_task["env"] == compose(f"env={task}")["env"] and set(transfer_task) == {
        "env",
        "agent",
        "low",
        "high",
    }
    assert transfer_task["low"] < transfer_task["high"]


@pytest.mark.parametrize("method", METHODS)
def test_arguments_have_fields(method):
    """Fields of options and arguments of classes agree."""
    config = compose_finetuning(f"method={method}")
    builder = Builder()
    nodes = [config[group] for group in ("method", "dataset", "rewards", "evaluation")]
    nodes += [config["method"]["lora"], config["method"]["optimizer"]]
    for node in nodes:
        arguments = set(inspect.signature(builder.locate(node["_target_"], "")).parameters)
        assert arguments == set(node) - {"_target_"}


def test_task_limits_are_returns():
    for limits in ("{low: bad}", "{low: 2, high: 1}"):
        with pytest.raises(ConfigError, match=r"transfer\.maze\.low"):
            check_values(compose_finetuning("transfer=[maze]", f"transfer.maze={limits}"))
