"""The parts of a fine-tuning run, built from a resolved config, and refused where they cannot work together."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.config.builder import Builder
from llmrl.config.loop_sections import agent_loop
from llmrl.core.errors import ConfigError, ErrorCollector
from llmrl.core.seeding import Seeds
from llmrl.experiment.application import Application, Rows
from llmrl.experiment.distributed_checks import check_together
from llmrl.experiment.loggers import check_loggers
from llmrl.experiment.models import POLICIES, build_model
from llmrl.experiment.prerequisites import Compute
from llmrl.experiment.resources import Model, RunResources
from llmrl.experiment.run_references import with_digests as outside_digests
from llmrl.llms.client import ChatClient
from llmrl.llms.local.chat import LocalChat

if TYPE_CHECKING:
    from llmrl.finetuning.search_task import SearchTask
    from llmrl.loops.finetune import FinetuneLoop
    from llmrl.rollout.batched_evaluator import Evaluator
    from llmrl.run.run import Run

Config = Mapping[str, Any]

PACKAGES = ("transformers", "trl", "peft", "datasets")
_VERSIONS = ("gymnasium", "mujoco", "numpy")
"""Packages whose version may change what a game returns."""
_PROPOSER = "llmrl.principals.llm_factory.llm_principal"
_LOCAL_CHAT = "llmrl.llms.local.chat.LocalChat"


class FinetuneApplication(Application):
    """A language model that proposes policy parameters, trained on its own proposals or on good ones."""

    command = "llmrl-finetune"
    primary = "finetune"

    def named(self, config: Config) -> list[str]:
        return ["method"]  # which method made a model belongs into the run's name, chosen or not

    def with_digests(self, config: dict[str, Any]) -> dict[str, Any]:
        return with_digests(config)

    def check_values(self, config: Config, resources: RunResources) -> None:
        check_installed()
        check_values(config, resources)

    def make_model(self, resources: RunResources) -> Model:
        return build_model(resources)

    def plan(self, config: Config, resources: RunResources) -> Rows:
        with planned(config, resources) as parts:
            return parts.plan()

    def compute(self, config: Config, resources: RunResources, run: Run, compute_needed: Compute) -> None:
        from llmrl.loops.executor import serve

        self.check_values(config, resources)
        with build(config, resources, run) as parts:
            run.status.env, run.status.llm = parts.task.name, parts.client.label
            run.result = serve(parts.loop.requests(run), run)

    def print_end(self, run: Run) -> None:
        from llmrl.display.finetune_summary import print_finished

        print_finished(run)


@dataclass
class FinetuneParts:
    """What one run is made of; a context manager, which ends processes and lets go of memory."""

    config: Config
    task: SearchTask
    loop: FinetuneLoop
    client: ChatClient
    evaluators: list[Evaluator] = field(default_factory=list)

    def plan(self) -> list[tuple[str, str]]:
        """Rows (what, value) for a dry run."""
        space = self.task.space
        low, high = space.low, space.high
        return [
            ("env", self.task.spec.name),
            ("policy", f"{space.name}, {space.dim} numbers from {low.min():g} to {high.max():g}"),
            ("model", self.client.label),
            *self.loop.plan(),
            (
                "hardware",
                f"{self.config['hardware']['device']}, threads {self.config['hardware']['threads'] or 'default'}",
            ),
        ]

    def __enter__(self) -> FinetuneParts:
        return self

    def __exit__(self, *_: object) -> None:
        for evaluator in self.evaluators:
            evaluator.close()
        self.client.close()


def check_installed() -> None:
    """Raise ConfigError where a package that training needs is missing; and keep them from reporting their use."""
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"llmrl-finetune needs {', '.join(missing)}: pip install 'llmrl[finetune]'")
    # Before they are imported; what the user has set stays.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def with_digests(config: dict[str, Any]) -> dict[str, Any]:
    """The resolved config with digests of the files that decide results: as for `llmrl-train`, and `runs_digest` of the
    proposals of the search runs, where there are any.

    Raises:
        ConfigError: there are none, or they are no longer what they were when the run was submitted.
    """
    from llmrl.finetuning.trials import find_search_runs
    from llmrl.run.proposals import FILE_NAME

    config = outside_digests(config)
    if not config["dataset"].get("runs"):
        return config
    digest = hashlib.sha256()
    for folder in find_search_runs(config["dataset"]["runs"]):
        digest.update((folder / FILE_NAME).read_bytes() + b"\0")
    found = digest.hexdigest()[:12]
    if config.get("runs_digest", found) != found:
        raise ConfigError(
            "the proposals in dataset.runs have changed since this run was submitted; repeat its command, which makes "
            "a new run"
        )
    return {**config, "runs_digest": found}


def check_values(config: Config, resources: RunResources | None = None) -> None:
    """Check values that no run could be built with, as far as can be told without building an environment or a model.

    Raises:
        ConfigError: values that cannot work, all of them.
    """
    builder = Builder(trusted=config["trusted_modules"])
    errors = ErrorCollector()
    with errors.collect():
        _check_proposer(config)
    for group in ("env", "agent", "principal", "hardware"):
        with errors.collect():
            builder.check(config[group], group)
    with errors.collect():
        _build_settings(config)
    with errors.collect():
        builder.check({name: value for name, value in config["llm"].items() if name not in POLICIES}, "llm")
    with errors.collect():
        _check_task(config, builder, "")
    for name, nodes in config["transfer"].items():
        for group in ("env", "agent"):
            with errors.collect():
                builder.check(_unwrapped(nodes[group], group), f"transfer.{name}.{group}")
        with errors.collect():
            _check_task(nodes, builder, f"transfer.{name}.")
        with errors.collect():
            _limits(nodes, name)
    with errors.collect():
        check_loggers(config)
    errors.raise_all()
    check_together(config, resources or RunResources(config))


def _check_proposer(config: Config) -> None:
    """Raise ConfigError unless the principal asks a language model of this process that has no adapter yet."""
    if config["principal"].get("_target_") != _PROPOSER:
        raise ConfigError("llmrl-finetune trains the language model of principal=llm; leave out principal=")
    if config["llm"].get("_target_") != _LOCAL_CHAT:
        raise ConfigError(
            "llmrl-finetune trains a model whose weights are here; use llm=local_chat llm.model=<folder or hub name>"
        )
    if config["llm"]["adapter"] is not None:
        raise ConfigError(
            f"llm.adapter={config['llm']['adapter']}: training makes a new adapter for llm.model; leave it null, "
            "or merge the old one into a model of its own first (peft: merge_and_unload, save_pretrained)"
        )


def _build_settings(config: Config) -> dict[str, Any]:
    """Return the settings of the data, the method, the rewards and the evaluation.

    Raises:
        ConfigError: values that cannot work, alone or together, all of them.
    """
    from llmrl.finetuning.optimiser import Optimiser

    builder = Builder(trusted=config["trusted_modules"])
    errors = ErrorCollector()
    settings: dict[str, Any] = {}
    for name in ("dataset", "method", "rewards", "evaluation"):
        with errors.collect():
            builder.check(config[name], name)
            settings[name] = builder.build(config[name], name)
    with errors.collect():
        Optimiser.check(config["llm"].get("dtype"))
    if {"method", "dataset"} <= settings.keys() and not settings["method"].needs_replies:
        with errors.collect():
            settings["method"].check(settings["dataset"].prompts)
    errors.raise_all()
    return settings


def _check_task(chosen: Config, builder: Builder, where: str) -> None:
    """Raise ConfigError unless the nodes `env` and `agent` of `chosen`, at `where`, are an environment whose episodes
    judge policies and a policy with parameters to propose."""
    nodes = {group: _unwrapped(chosen[group], group) for group in ("env", "agent")}
    if not hasattr(builder.locate(nodes["env"]["_target_"], f"{where}env"), "evaluator"):
        raise ConfigError(
            f"{where}env={nodes['env']['_target_']} is no environment of Gymnasium, and policies are judged by "
            "episodes of such; use e.g. env=cartpole agent=linear, or env=maze agent=tabular"
        )
    if agent_loop(nodes["agent"], builder) != "search":
        raise ConfigError(
            f"{where}agent={nodes['agent']['_target_']} has no parameters that could be proposed; use agent=linear, "
            "tabular, mlp_policy or projection"
        )


def planned(config: Config, resources: RunResources | None = None) -> FinetuneParts:
    """Return the parts of a run that is not to be computed; else as `build`."""
    resources = resources or RunResources(config, build_model)
    check_installed()
    check_values(config, resources)
    return build(config, resources, None)


def build(config: Config, resources: RunResources, run: Run | None) -> FinetuneParts:
    """All parts; nothing is played and no weight is loaded. `run` is None where there is only a plan to make.

    Raises:
        ConfigError: parts that cannot work together, data that is not there.
        LLMError: there is no such model.
    """
    from llmrl.loops.finetune import FinetuneLoop, FinetuneSettings

    clients: dict[str | None, ChatClient] = {}

    def models(adapter: str | None) -> ChatClient:
        if adapter not in clients:
            # The model before training is the run's; others are made of it.
            own = (
                resources
                if adapter is None
                else RunResources(config, lambda own: build_model(own, {**config["llm"], "adapter": adapter}))
            )
            made = own.model if run is None else own.join_run(run.folder, lambda: run.stop.requested)
            assert isinstance(made, ChatClient) and isinstance(made.provider, LocalChat)
            clients[adapter] = made
        return clients[adapter]

    settings = _build_settings(config)
    seeds = Seeds(config["seed"])
    client = models(None)
    evaluators: list[Evaluator] = []
    try:
        task = _build_task(config, resources, config, config["principal"], client, evaluators, "")
        # What prompts say of the best there can be is about the task that is trained on.
        elsewhere = {**config["principal"], "optimum": None}
        transfer = [
            _build_task(config, resources, nodes, elsewhere, client, evaluators, name)
            for name, nodes in config["transfer"].items()
        ]
        settings["dataset"].check(task)
        loop = FinetuneLoop(
            task=task,
            transfer=transfer,
            settings=FinetuneSettings(**settings),
            models=models,
            store=Path(config["trials_dir"]).expanduser(),
            seeds=seeds.child("finetune"),
        )
    except BaseException:
        for evaluator in evaluators:
            evaluator.close()
        raise
    return FinetuneParts(config, task, loop, client, evaluators)


def _build_task(
    config: Config,
    resources: RunResources,
    chosen: Config,
    principal: Config,
    client: ChatClient,
    evaluators: list[Evaluator],
    name: str,
) -> SearchTask:
    """The task of the nodes `env` and `agent` of `chosen`; `name` is that of another task, "" of the one trained on."""
    from llmrl.finetuning.prompt_format import PromptFormat
    from llmrl.finetuning.search_task import SearchTask
    from llmrl.finetuning.trials import task_of

    trusted, seeds, where = config["trusted_modules"], Seeds(config["seed"]), f"transfer.{name}." if name else ""
    nodes = {group: _unwrapped(chosen[group], group) for group in ("env", "agent")}
    builder = Builder({"seeds": seeds.child("env")}, trusted)
    env = builder.build({**nodes["env"], "n_envs": 1}, f"{where}env")
    env.close()
    offered = {
        "spec": env.spec,
        "seeds": seeds.child("agent"),
        "device": "cpu",
        "has_principal": False,
        "teacher": None,
    }
    agent = Builder(offered, trusted).build(nodes["agent"], f"{where}agent")
    controller = agent.controller
    evaluator = env.evaluator(bool(getattr(controller, "clip_actions", True)), resources.cores)
    evaluators.append(evaluator)
    prompt_folder = None if config["prompts"] is None else Path(config["prompts"]).expanduser()
    offered = {"spec": env.spec, "llm": client, "controller": controller, "prompt_folder": prompt_folder}
    proposer = Builder({**offered, "seeds": seeds.child("principal")}, trusted).build(principal, "principal")

    def play(vectors: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        returns: np.ndarray = evaluator.evaluate(controller, vectors, episodes).returns
        return returns

    seeded = Builder(trusted=trusted).needs(nodes["agent"], "seeds", "agent")
    identity = task_of({**nodes, "seed": config["seed"]}, seeded)
    limits = _limits(chosen, name) if name else (None, None)
    return SearchTask(name or env.spec.name, env.spec, identity, play, PromptFormat(proposer), _versions(), limits)


def _limits(chosen: Config, name: str) -> tuple[float | None, float | None]:
    """`low` and `high` of another task."""
    low, high = (chosen.get(key) for key in ("low", "high"))
    for key, value in (("low", low), ("high", high)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"transfer.{name}.{key}={value!r}: a return, a number, is needed, or null")
    if low is not None and high is not None and not low < high:
        raise ConfigError(f"transfer.{name}.low={low:g} must be below transfer.{name}.high={high:g}")
    return low, high


def _unwrapped(node: Config, group: str) -> dict[str, Any]:
    """An option of a group; those that also set a budget hold the part under the group's own key."""
    return dict(node.get(group, node))


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _VERSIONS if importlib.util.find_spec(name) is not None}
