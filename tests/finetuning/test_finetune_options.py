"""Every option that is shipped composes, is accepted, and says all its fields."""

import inspect

import pytest

from experiments import compose
from llmrl.config.builder import Builder
from llmrl.core.option_files import options
from llmrl.finetuning.application import check_values

METHODS, DATASETS = (sorted(options(group)) for group in ("method", "dataset"))


def compose_finetuning(*overrides):
    return compose("llm.model=/models/some", *overrides, primary="finetune")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_methods_and_datasets_combine(method, dataset):
    runs = ["dataset.runs=[outputs]"] if dataset == "search" else []
    check_values(compose_finetuning(f"method={method}", f"dataset={dataset}", *runs))


@pytest.mark.parametrize("method", METHODS)
def test_arguments_have_fields(method):
    """Nothing can be set that is not written in the option, and the other way round."""
    config = compose_finetuning(f"method={method}")
    builder = Builder()
    nodes = [config[group] for group in ("method", "dataset", "rewards", "evaluation")]
    nodes += [config["method"]["lora"], config["method"]["optimizer"]]
    for node in nodes:
        arguments = set(inspect.signature(builder.locate(node["_target_"], "")).parameters)
        assert arguments == set(node) - {"_target_"}
