"""The application behind `llmrl-finetune`: checks of a config, construction of the loop, and printed results."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.config.builder import Builder, Config
from llmrl.config.loop_sections import get_declared_loop
from llmrl.core.errors import ConfigError, ErrorCollector
from llmrl.core.override_text import format_override
from llmrl.core.plain_data import read_json_object
from llmrl.core.seeding import Seeds
from llmrl.core.services import AgentServices, EnvServices, PrincipalServices
from llmrl.experiment.application import Application, PlanRows
from llmrl.experiment.models import build_model
from llmrl.experiment.parts import check_distributed
from llmrl.experiment.prerequisites import ComputeRun
from llmrl.experiment.resources import Model, RunResources
from llmrl.experiment.run_references import with_digests
from llmrl.llms.client import ChatClient

if TYPE_CHECKING:
    from llmrl.finetuning.loop import FinetuneLoop
    from llmrl.finetuning.search_task import SearchTask
    from llmrl.run.run import Run

REQUIRED_PACKAGES = ("transformers", "trl", "peft", "datasets")
"""Packages that fine-tuning needs in addition to those of llmrl."""
_PROPOSER_TARGET = "llmrl.principals.llm_factory.llm_principal"
_LOCAL_CHAT_TARGET = "llmrl.llms.local.chat.LocalChat"
_COLUMNS = ("before", "after", "difference", "random", "incumbent")
"""Columns of the printed results, keys of `evaluation.json`."""


class FinetuneApplication(Application):
    """Application that fine-tunes the language model of `principal=llm` in a policy search."""

    command = "llmrl-finetune"

    def list_label_groups(self, config: Config) -> list[str]:
        return ["method"]  # the name of a run shows the method, even if it is the default

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the resolved config with digests of the files that affect results.

        `runs_digest`, of the proposals in `dataset.runs`, is added to the digests of `llmrl-train`.

        Raises:
            ConfigError: there are no proposals, or they have changed since the run was submitted.
        """
        from llmrl.finetuning.trials import find_search_runs
        from llmrl.run.proposals import FILE_NAME

        config = with_digests(config)
        if not config["dataset"].get("runs"):
            return config
        digest = hashlib.sha256()
        for folder in find_search_runs(config["dataset"]["runs"]):
            digest.update((folder / FILE_NAME).read_bytes() + b"\0")
        digest_text = digest.hexdigest()[:12]
        if config.get("runs_digest", digest_text) != digest_text:
            raise ConfigError(
                "the proposals in dataset.runs have changed since this run was submitted; repeat its command, which "
                "starts a new run"
            )
        return {**config, "runs_digest": digest_text}

    def check_values(self, config: Config, resources: RunResources) -> None:
        if missing := [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]:
            raise ConfigError(f"llmrl-finetune needs {', '.join(missing)}: pip install 'llmrl[finetune]'")
        # huggingface_hub reads this variable when it is imported.
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        check_values(config, resources)

    def make_model(self, resources: RunResources) -> Model:
        return build_model(resources)

    def plan(self, config: Config, resources: RunResources) -> PlanRows:
        hardware = config["hardware"]
        with build_loop(config, resources) as loop:
            return [*loop.plan(), ("hardware", f"{hardware['device']}, threads {hardware['threads'] or 'default'}")]

    def compute(self, config: Config, resources: RunResources, run: Run, compute_run: ComputeRun) -> None:
        from llmrl.loops.executor import serve

        self.check_values(config, resources)
        with build_loop(config, resources, run) as loop:
            run.status.env, run.status.llm = loop.task.name, loop.client.label
            run.result = serve(loop.requests(run), run)

    def print_summary(self, run: Run) -> None:
        """Print the results of a fine-tuning run, and the options that use its adapter."""
        from llmrl.display.console import print_fields, print_line, print_table
        from llmrl.display.results import print_validity_warning
        from llmrl.finetuning.proposer_evaluation import EVALUATION_FILE

        results_path = run.folder / EVALUATION_FILE
        for name, task_results in (read_json_object(results_path) if results_path.is_file() else {}).items():
            rows = [
                [measure.replace("_", " "), *(_format_cell(task_results[column][measure]) for column in _COLUMNS)]
                for measure in task_results["after"]
            ]
            title = f"{task_results['task']} ({name.replace('_', ' ')}), {task_results['prompts']} prompts"
            header = ["", *(column.replace("_", " ") for column in _COLUMNS)]
            print_table(f"{title}, 95 % intervals", header, rows, alignments="l")
        scalars = {k.replace("_", " "): v for k, v in run.summary.items() if isinstance(v, int | float | str)}
        fields = [(k, f"{v:,.4g}" if isinstance(v, float) else f"{v}") for k, v in scalars.items()]
        print_fields(str(run.folder), fields)
        print_validity_warning(run.summary)
        options = format_adapter_options(run.config["llm"]["model"], run.summary["adapter"])
        print_line(f"Use it in llmrl-train, with the same env=, agent= and principal.*: {options}")


def format_adapter_options(model: str, adapter: str) -> str:
    """Return the options of `llmrl-train` that use an adapter, quoted for a shell."""
    values = {"llm.model": model, "llm.adapter": adapter}
    return shlex.join(
        ["principal=llm", "llm=local_chat", *(format_override(key, value) for key, value in values.items())]
    )


def _format_cell(statistics: dict[str, Any]) -> str:
    """Return the mean with its 95 % interval, if it has one; "-" if there is no mean."""
    if statistics["mean"] is None:
        return "-"
    interval = "" if statistics["low"] is None else f" [{statistics['low']:.3g}, {statistics['high']:.3g}]"
    return f"{statistics['mean']:.3g}{interval}"


def check_values(config: Config, resources: RunResources | None = None) -> None:
    """Check all values of the config that can be checked without building an environment or a model.

    Raises:
        ConfigError: values are invalid; the message lists all of them.
    """
    resources = resources or RunResources(config)
    builder = resources.builder
    tasks = {"": config, **{f"transfer.{name}.": task for name, task in config["transfer"].items()}}
    nodes = {f"{prefix}{group}": task[group] for prefix, task in tasks.items() for group in ("env", "agent")}
    nodes |= {"principal": config["principal"], "hardware": config["hardware"], "llm": resources.model_nodes[0]}
    checks: list[Callable[[], object]] = [
        partial(_check_model, config),
        *(partial(builder.validate, _select_node(node, path), path) for path, node in nodes.items()),
        partial(_build_settings, config, builder),
        *(partial(_check_task, task, builder, prefix) for prefix, task in tasks.items()),
        *(partial(_read_return_limits, task, name) for name, task in config["transfer"].items()),
        resources.check_sinks,
    ]
    errors = ErrorCollector()
    for check in checks:
        with errors.collect():
            check()
    errors.raise_all()
    check_distributed(config, resources)


def _check_model(config: Config) -> None:
    """Raise ConfigError unless the principal is a language model with local weights and without an adapter."""
    if config["principal"].get("_target_") != _PROPOSER_TARGET:
        raise ConfigError("llmrl-finetune trains the language model of principal=llm; leave out principal=")
    if config["llm"].get("_target_") != _LOCAL_CHAT_TARGET:
        raise ConfigError(
            "llmrl-finetune trains only a model with local weights; use llm=local_chat llm.model=<folder or hub name>"
        )
    if config["llm"]["adapter"] is not None:
        raise ConfigError(
            f"llm.adapter={config['llm']['adapter']}: training creates a new adapter for llm.model, so it must be "
            "null. To train on, merge that adapter into a model first (peft: merge_and_unload, save_pretrained)"
        )
    if config["llm"].get("dtype") == "float16":
        raise ConfigError("llm.dtype=float16 is not precise enough for training; use bfloat16 or float32")


def _build_settings(config: Config, builder: Builder) -> dict[str, Any]:
    """Return the settings of the dataset, the method, the rewards and the evaluation.

    Raises:
        ConfigError: values or their combinations are invalid; the message lists all of them.
    """
    errors = ErrorCollector()
    settings: dict[str, Any] = {}
    for name in ("dataset", "method", "rewards", "evaluation"):
        with errors.collect():
            settings[name] = builder.build(config[name], name)
    if {"method", "dataset"} <= settings.keys():
        with errors.collect():
            settings["method"].check_prompt_count(settings["dataset"].prompts)
    errors.raise_all()
    return settings


def _check_task(task: Config, builder: Builder, prefix: str) -> None:
    """Raise ConfigError unless the nodes `env` and `agent` of `task` are those of a policy search.

    `prefix` precedes their keys in messages: "" for the training task, "transfer.<name>." for others.
    """
    nodes = {group: _select_node(task[group], group) for group in ("env", "agent")}
    if not hasattr(builder.locate(nodes["env"]["_target_"], f"{prefix}env"), "build_evaluator"):
        raise ConfigError(
            f"{prefix}env={nodes['env']['_target_']} is not a Gymnasium environment, whose episodes evaluate policies; "
            "use e.g. env=cartpole agent=linear, or env=maze agent=tabular"
        )
    if get_declared_loop(nodes["agent"], builder) != "search":
        raise ConfigError(
            f"{prefix}agent={nodes['agent']['_target_']} has no parameters to propose; use agent=linear, tabular, "
            "mlp_policy or projection"
        )


@contextmanager
def build_loop(config: Config, resources: RunResources, run: Run | None = None) -> Iterator[FinetuneLoop]:
    """Build the loop with all its parts, and close them at the end of the `with` block.

    No episode is played and no weights are loaded.

    Args:
        config: resolved config.
        resources: resources of the run.
        run: run that logs the calls of the model; None if the loop is built only to print its plan.

    Raises:
        ConfigError: parts cannot be combined, or trials are missing.
        LLMError: the model does not exist.
    """
    from llmrl.finetuning.loop import FinetuneLoop

    def join_run(model_resources: RunResources) -> ChatClient:
        """Return the client of the model; its calls are logged in the run folder, if there is a run."""
        model = model_resources.model
        if run is not None:
            model = model_resources.join_run(run.folder, lambda: run.stop_flag.requested)
        assert isinstance(model, ChatClient)
        return model

    def load_finetuned_client(adapter_dir: Path) -> ChatClient:
        llm_node = {**config["llm"], "adapter": str(adapter_dir)}
        return join_run(RunResources(config, lambda model_resources: build_model(model_resources, llm_node)))

    settings = _build_settings(config, resources.builder)
    with ExitStack() as exit_stack:
        client = join_run(resources)
        exit_stack.callback(client.close)
        task = _build_task(config, resources, config, config["principal"], client, exit_stack, name="")
        # principal.optimum is the optimum of the training task only.
        principal = {**config["principal"], "optimum": None}
        transfer_tasks = [
            _build_task(config, resources, nodes, principal, client, exit_stack, name)
            for name, nodes in config["transfer"].items()
        ]
        settings["dataset"].check_trials(task)
        yield FinetuneLoop(
            task=task,
            transfer_tasks=transfer_tasks,
            **settings,
            client=client,
            load_finetuned_client=load_finetuned_client,
            trials_dir=Path(config["trials_dir"]).expanduser(),
            seeds=Seeds(config["seed"]).child("finetune"),
        )


def _build_task(
    config: Config,
    resources: RunResources,
    task_config: Config,
    principal: Config,
    client: ChatClient,
    exit_stack: ExitStack,
    name: str,
) -> SearchTask:
    """Build the search task of the nodes `env` and `agent` of `task_config`.

    `name` is the name of a transfer task, or "" for the training task. `exit_stack` closes the environments.
    """
    from llmrl.finetuning.prompt_format import PromptFormat
    from llmrl.finetuning.search_task import SearchTask
    from llmrl.finetuning.trials import get_task_identity

    builder, seeds, prefix = resources.builder, Seeds(config["seed"]), f"transfer.{name}." if name else ""
    nodes = {group: _select_node(task_config[group], group) for group in ("env", "agent")}
    env = builder.replace_services(EnvServices(seeds.child("env"))).build({**nodes["env"], "n_envs": 1}, f"{prefix}env")
    env.close()
    services = AgentServices(env.spec, seeds.child("agent"))
    controller = builder.replace_services(services).build(nodes["agent"], f"{prefix}agent").controller
    evaluator = env.build_evaluator(bool(getattr(controller, "clip_actions", True)), resources.cores)
    exit_stack.callback(evaluator.close)
    prompt_folder = None if config["prompts"] is None else Path(config["prompts"]).expanduser()
    principal_services = PrincipalServices(
        env.spec, seeds.child("principal"), llm=client, controller=controller, prompt_folder=prompt_folder
    )
    proposer = builder.replace_services(principal_services).build(principal, "principal")

    def play(vectors: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        return evaluator.evaluate(controller, vectors, episodes).returns

    identity = get_task_identity({**nodes, "seed": config["seed"]}, builder.needs(nodes["agent"], "seeds", "agent"))
    limits = _read_return_limits(task_config, name) if name else (None, None)
    return SearchTask(name or env.spec.name, env.spec, identity, play, PromptFormat(proposer), limits)


def _read_return_limits(task_config: Config, name: str) -> tuple[float | None, float | None]:
    """Return `low` and `high` of a transfer task, the returns that are scaled to 0 and to 1; None if not given."""
    low, high = (task_config.get(key) for key in ("low", "high"))
    for key, value in (("low", low), ("high", high)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"transfer.{name}.{key}={value!r} must be a return (a number) or null")
    if low is not None and high is not None and not low < high:
        raise ConfigError(f"transfer.{name}.low={low:g} must be below transfer.{name}.high={high:g}")
    return low, high


def _select_node(node: Config, path: str) -> dict[str, Any]:
    """Return the config of a part from its option, which contains it under the group's key if it also sets a budget."""
    return dict(node.get(path.rpartition(".")[2], node))
