"""Checks of a resolved config, and construction of the parts of its experiment and of the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmrl.config.builder import Builder, Config
from llmrl.config.loop_sections import LOOP_CLASSES, LOOP_SETTINGS, OBSERVED_LOOPS, LoopKind, get_loop_kind, get_section
from llmrl.core.errors import ConfigError, ErrorCollector, IncompatibilityReason, Incompatible
from llmrl.core.model_protocols import ChatModel, Scorer
from llmrl.core.observers import Observer
from llmrl.core.option_files import load_options
from llmrl.core.processes import ProcessGroup, read_rank_and_world_size
from llmrl.core.protocols import Agent, Controller, Proposer, VecEnv
from llmrl.core.ram import require_memory_for_games
from llmrl.core.ranges import SpendingCost
from llmrl.core.seeding import Seeds
from llmrl.core.services import AgentServices, EnvServices, ObserverServices, PrincipalServices
from llmrl.core.spaces import EnvSpec
from llmrl.core.welfare_measures import Objective
from llmrl.experiment.build_env import build_env
from llmrl.experiment.config_completion import groups_using_model, iterate_agent_nodes
from llmrl.experiment.resources import RunResources, model_options
from llmrl.experiment.run_lookup import parse_reference
from llmrl.llms.client import ChatClient
from llmrl.loops.compute_requests import Loop
from llmrl.loops.loop_parts import LoopParts
from llmrl.run.artifacts import CONFIG_NAME
from llmrl.run.config_hash import RESOLVED_RUNS_KEY
from llmrl.run.status import read_status


@dataclass(frozen=True, kw_only=True)
class Parts(LoopParts):
    """The built parts of an experiment.

    `agents` holds one agent for each society of each proposal that a principal step evaluates; loops without societies
    have one agent. `teacher` is the teacher of the last agent. Welfare is `objective` minus `spending_cost` times the
    reward that the mechanism spends, also in runs without a principal.

    Attributes:
        objective: welfare measure of a society.
        llm: language model; None if no part uses one.
        resources: device, cores and language model of the run.
        loop_kind: kind of the loop that runs these parts (`get_loop_kind`).
    """

    objective: Objective
    llm: ChatModel | Scorer | None
    resources: RunResources
    loop_kind: LoopKind

    def close(self) -> None:
        """Close the environment and the client of the language model."""
        self.env.close()
        if self.meter is not None:
            self.meter.close()


def count_envs_per_society(config: Config) -> int:
    """Return the number of games that each society plays in parallel in a principal step."""
    design = config["design"]
    return int(config["env"]["n_envs"] // (design["candidates"] * design["replicates"]))


def build_parts(
    config: Config,
    llm: ChatClient | Scorer | None,
    render: bool | None = None,
    play_only: bool = False,
    folder: Path | None = None,
    n_proposals: int | None = None,
    resources: RunResources | None = None,
) -> Parts:
    """Build all parts of a resolved config; raise ConfigError for parts that cannot work together.

    Args:
        config: resolved config in plain containers.
        llm: model from `build_llm`.
        render: value for `env.render`, if the environment has that option; None: the value of the config.
        play_only: whether to build neither observers nor the principal, so that no principal's model is called.
        folder: run folder, for parts that write readable files there; None: nothing is written.
        n_proposals: number of agents to build, one for each society, if there is no principal or with `play_only`;
            None: one agent.
        resources: device, cores and language model of the run; None: create them from `config`.

    Raises:
        ConfigError: an option is invalid, or the parts cannot work together.
    """
    config = without_missing_weights(config, play_only)
    resources = resources or RunResources(config)
    seeds = Seeds(config["seed"])
    device = resources.device
    builder = resources.builder
    env = build_env(_env_options(config, render), builder.replace_services(EnvServices(seeds.child("env"), device)))
    try:
        if (config.get("play", {}).get("videos") if render is None else render) and not hasattr(env, "render"):
            raise ConfigError(
                f"a video needs frames, and {env.spec.name} has no method `render` (llmrl.core.protocols.VecEnv): "
                f"implement it in {type(env).__qualname__}, or leave out --video and play.videos"
            )
        kind = get_loop_kind(config, builder)
        has_principal = kind == "design"
        if has_principal and env.spec.mechanism is None:
            env_names = ", ".join(name for name, option in load_options("env").items() if option.get("mechanism"))
            raise Incompatible(
                IncompatibilityReason.MISSING_PART,
                f"a principal needs an environment with a mechanism, and {env.spec.name} has none (env.mechanism may "
                f"be off); use env={env_names} with their mechanism, an agent whose parameters it can search, such as "
                "agent=linear, or principal=none",
            )
        design = config["design"]
        is_design_run = has_principal and not play_only
        n_candidates = design["candidates"] if is_design_run else n_proposals or 1
        n_replicates = design["replicates"] if is_design_run else 1
        n_societies = n_candidates * n_replicates
        services = AgentServices(
            spec=replace(env.spec, n_envs=env.spec.games_per_group(n_societies)) if n_societies > 1 else env.spec,
            seeds=seeds,
            device=device,
            env_options=config["env"],
            env_factory=getattr(env, "env_factory", None),
            llm=llm if isinstance(llm, ChatModel) else None,
            scorer=llm if isinstance(llm, Scorer) else None,
            has_principal=has_principal,
            prompt_folder=None if config.get("prompts") is None else Path(config["prompts"]).expanduser(),
            folder=folder,
            processes=get_process_group(),
            cores=resources.cores,
        )
        # `loops.societies.Societies` expects all societies of the first candidate, then those of the second, and so on.
        agents_with_teachers = [
            _build_agent(config, replace(services, seeds=society_seeds, society_index=i), builder)
            for i, society_seeds in enumerate(seeds.replicates(n_replicates) * n_candidates)
        ]
        agents, teacher = [agent for agent, _ in agents_with_teachers], agents_with_teachers[-1][1]
        if agent_kinds := getattr(agents[0], "kinds", None):  # of a mixed society: agent indices by member name
            env.spec = replace(env.spec, kinds=agent_kinds)
        chosen_objective: Objective | None = builder.build_value(
            design["objective"], Objective | None, "design.objective"
        )
        objective, spending_cost = chosen_objective or env.spec.objective, read_spending_cost(config, builder)
        if kind == "search" and hasattr(env, "clip_actions"):
            env.clip_actions = bool(getattr(agents[0].controller, "clip_actions", True))
        principal = None
        if kind in ("design", "search") and not play_only:
            spec = replace(env.spec, objective=objective, spending_cost=spending_cost)
            principal = _build_principal(config, spec, services, agents[0], builder)
        observers = [] if play_only else _build_observers(config, env, folder, kind, builder)
    except BaseException:
        env.close()
        raise
    return Parts(
        env=env,
        agents=agents,
        seeds=seeds.child("loop"),
        device=device,
        objective=objective,
        spending_cost=spending_cost,
        principal=principal,
        teacher=teacher,
        meter=llm if isinstance(llm, ChatClient) else None,
        observers=observers,
        cores=resources.cores,
        llm=llm,
        resources=resources,
        loop_kind=kind,
    )


def _env_options(config: Config, render: bool | None) -> Mapping[str, Any]:
    """Return the options of the environment, with `render` set if videos or agents need rendered frames.

    Args:
        config: resolved config.
        render: value for `env.render`; None: the value of the config.
    """
    options: Mapping[str, Any] = config["env"]
    if render is None and config.get("play", {}).get("videos"):
        render = True
    if any(node.get("show_frames") for node in iterate_agent_nodes(config.get("agent") or {})):
        render = True
    return {**options, "render": render} if render is not None and "render" in options else options


def _build_agent(config: Config, services: AgentServices, builder: Builder) -> tuple[Any, Any]:
    """Return the agent of a society, and its teacher (None if there is none).

    Args:
        config: resolved config.
        services: services of the agent, with the seeds of the society.
        builder: builder of the run.

    Raises:
        Incompatible: there is a teacher, and the agent cannot learn from one.
    """
    seeds = services.seeds
    teacher_builder = builder.replace_services(replace(services, seeds=seeds.child("teacher")))
    teacher = teacher_builder.build(config["teacher"], "teacher")
    builder = builder.replace_services(replace(services, seeds=seeds.child("agent"), teacher=teacher))
    if teacher is not None and not builder.needs(config["agent"], "teacher", "agent"):
        raise Incompatible(
            IncompatibilityReason.NOT_TRAINABLE,
            "a teacher adds a term to the loss of a learning agent; use agent=ppo, or teacher=none",
        )
    return builder.build(config["agent"], "agent"), teacher


def _build_principal(
    config: Config, spec: EnvSpec, services: AgentServices, agent: Agent, builder: Builder
) -> Proposer:
    """Return the principal of a run with the loop `design` or `search`.

    Args:
        config: resolved config.
        spec: spec of the environment with all its games, and with the objective and spending cost of the run.
        services: services of the agents.
        agent: agent whose parameters the principal searches; not used if the principal sets a mechanism.
        builder: builder of the run.

    Raises:
        Incompatible: the principal cannot search the parameters of a policy.
    """
    controller: Controller | None = None if services.has_principal else agent.controller  # type: ignore[attr-defined]
    builder = builder.replace_services(
        PrincipalServices.from_agent(
            services,
            spec=spec,
            seeds=Seeds(config["seed"]).child("principal"),
            space=spec.proposal_space if controller is None else controller.space,
            controller=controller,
            proposals=count_proposals(config, "design" if controller is None else "search"),
        )
    )
    if controller is not None and not can_search_parameters(config["principal"], builder):
        name, nodes = config["principal"]["_target_"].rpartition(".")[2], load_options("principal")
        principals = [x for x, node in nodes.items() if node["_target_"] and can_search_parameters(node, Builder())]
        raise Incompatible(
            IncompatibilityReason.MISSING_PART,
            f"{name} needs a society under a mechanism and cannot search the parameters of a policy; use "
            f"principal={', '.join(principals)}",
        )
    return builder.build(config["principal"], "principal")


def without_missing_weights(config: Config, play_only: bool = False) -> Config:
    """Return the config with `agent.init_from` set to None if the weights that it names are missing and not needed.

    A plan does not need the weights of an unfinished preset, and an agent that gets its weights from a checkpoint needs
    no others, unless it has a language model, whose checkpoints contain only the trained weights.

    Args:
        config: config with resolved run references (`run_references.resolve_references`); in a config without them,
            the run of a preset is treated as missing.
        play_only: whether the agent gets its weights from a checkpoint.
    """
    init_from = (config.get("agent") or {}).get("init_from")
    resolution = (config.get(RESOLVED_RUNS_KEY) or {}).get("agent.init_from")
    if not isinstance(init_from, str) or (resolution is None and not init_from.startswith("preset:")):
        return config
    is_preset = resolution is None or resolution["as"].startswith("preset:")
    folder = Path(init_from).expanduser()
    status = read_status(folder) if is_preset and resolution is not None else None
    is_available = status is not None and status.state == "finished" if is_preset else folder.is_dir()
    has_complete_checkpoints = not Builder(trusted=config["trusted_modules"]).needs(config["agent"], "scorer", "agent")
    if not is_available and (has_complete_checkpoints or not play_only) and (is_preset or play_only):
        return {**config, "agent": {**config["agent"], "init_from": None}}
    return config


def can_search_parameters(principal: Config, builder: Builder) -> bool:
    """Return whether a principal can search any space of parameters, not only the mechanisms of an environment."""
    return any(builder.needs(principal, name, "principal") for name in ("space", "controller"))


def count_proposals(config: Config, kind: LoopKind) -> int:
    """Return how many vectors a principal proposes in a run of the loop `design` or `search`, over all contexts."""
    settings = config[kind]
    return int(settings["steps" if kind == "design" else "iterations"] * settings["candidates"])


def build_loop(config: Config, parts: Parts, load_references: Callable[[], Any] | None = None) -> Loop:
    """Build the loop of kind `parts.loop_kind`, or the loop `play` instead of `learn` for agents that do not learn.

    `load_references` returns the measured reference lines (`LoopParts.load_references`).
    """
    kind = parts.loop_kind
    if kind == "learn" and not parts.agents[0].learns:
        kind = "play"
    builder = parts.resources.builder
    settings = builder.build(config[get_section(kind)], get_section(kind), LOOP_SETTINGS[kind])
    return builder.locate(LOOP_CLASSES[kind], get_section(kind))(
        parts if load_references is None else replace(parts, load_references=load_references), settings
    )


def _build_observers(
    config: Config, env: VecEnv, folder: Path | None, kind: LoopKind, builder: Builder
) -> list[Observer]:
    """Build the observers in the config's list `observers`.

    Raises:
        ConfigError: an object is not an observer, or the loop `kind` cannot be observed.
    """
    nodes = config.get("observers") or []
    if nodes and kind not in OBSERVED_LOOPS:
        raise ConfigError(
            f"observers={[node.get('_target_') for node in nodes]}: episodes of the loop {kind} are played in other "
            f"processes and cannot be observed; remove observers, which work with the loops {', '.join(OBSERVED_LOOPS)}"
        )
    builder = builder.replace_services(ObserverServices(env.spec, env, folder))
    observers = [builder.build(node, f"observers[{i}]") for i, node in enumerate(nodes)]
    for i, observer in enumerate(observers):
        if not isinstance(observer, Observer):
            raise ConfigError(
                f"observers[{i}]: {type(observer).__name__} is not an observer; derive it from "
                "llmrl.core.observers.Observer"
            )
    return observers


def read_spending_cost(config: Config, builder: Builder) -> float:
    """Return `design.spending_cost`: the loss of welfare for each unit of reward that the mechanism spends.

    Raises:
        ConfigError: the value is not a number in [0, 1e6].
    """
    return float(builder.build_value(config["design"]["spending_cost"], SpendingCost, "design.spending_cost"))


def _check_init_from(config: Config) -> None:
    """Raise ConfigError if `agent.init_from` names a folder that is not a run folder."""
    init_from = config["agent"].get("init_from")
    if (
        not isinstance(init_from, str)
        or "agent.init_from" in (config.get(RESOLVED_RUNS_KEY) or {})
        or parse_reference(init_from) is not None
    ):
        return
    if not (Path(init_from).expanduser() / CONFIG_NAME).is_file():
        raise ConfigError(
            f"agent.init_from={init_from} is not a run folder (no {CONFIG_NAME}); give one like outputs/<name>/<run>/s0"
        )


def check_values(config: Config, resources: RunResources | None = None) -> None:
    """Raise ConfigError for invalid values and combinations that can be detected without building a part."""
    resources = resources or RunResources(config)
    builder = resources.builder
    nodes = {group: config[group] for group in ("env", "agent", "principal", "teacher", "hardware")}
    nodes |= {f"observers[{i}]": node for i, node in enumerate(config.get("observers") or ())}
    nodes["report"] = config.get("report") or {}  # the config of an imported run may lack it
    errors = ErrorCollector()
    for path, node in nodes.items():
        with errors.collect():
            builder.validate(node, path)
    errors.raise_all()
    _check_init_from(config)
    require_memory_for_games(config["env"].get("n_envs"))
    read_spending_cost(config, builder)
    check_distributed(config, resources)
    resources.check_sinks()
    if groups_using_model(config, builder=builder):
        for node in resources.model_nodes:
            builder.validate(node, "llm")
        for name, node in (config["llm"].get("variants") or {}).items():
            builder.validate(model_options(node), f"llm.variants.{name}")
    kind = get_loop_kind(config, builder)
    # Some agents decide in their constructor whether they learn, so the settings of both loops must be valid.
    for loop_name in ("learn", "play") if kind == "learn" else (kind,):
        if get_section(loop_name) in config:
            builder.validate(config[get_section(loop_name)], get_section(loop_name), LOOP_SETTINGS[loop_name])


def check_distributed(config: Config, resources: RunResources) -> None:
    """Raise ConfigError if several processes of this command or of a job cannot divide the work of a run."""
    n_processes = max(resources.hardware.backend.processes, read_rank_and_world_size()[1])
    if n_processes == 1:
        return
    advice = (
        "start a single process, without torchrun, or with hardware.backend.nodes=1 "
        "hardware.backend.processes_per_node=1"
    )
    if "method" in config:
        raise ConfigError(f"llmrl-finetune trains in one process, and there are {n_processes}; {advice}")
    builder = resources.builder
    llm_config = config.get("llm") or {}
    model_learns, has_sampler = ((llm_config.get(k) or {}).get("_target_") is not None for k in ("learn", "sampler"))
    # With llm/learn, each process answers a part of the requests, unless a server samples the replies (llm/sampler).
    players_learn = model_learns and not has_sampler and builder.needs(config["agent"], "llm", "agent")
    if not (players_learn or builder.needs(config["agent"], "processes", "agent")):
        agent_names = ", ".join(
            name for name, option in load_options("agent").items() if Builder().needs(option, "processes", "agent")
        )
        raise ConfigError(
            f"{config['agent']['_target_'].rpartition('.')[2]} computes in one process, so {n_processes} processes "
            f"would do the same work {n_processes} times. Use an agent whose work can be divided, agent={agent_names}, "
            f"or agent=llm_player with llm/learn and llm/sampler=none; or {advice}"
        )
    for group in ("principal", "teacher") if players_learn else ("principal", "agent", "teacher"):
        if builder.needs(config[group], "llm", group):
            raise ConfigError(
                f"the chosen {group} uses a chat model, to which {n_processes} processes would send each request "
                f"{n_processes} times; {advice}"
            )


def get_process_group() -> ProcessGroup:
    """Return the group of processes that compute the run of this command together.

    Raises:
        ConfigError: there are several processes, but only `llmrl-train` can use them.
    """
    processes, world_size = ProcessGroup.get_joined(), read_rank_and_world_size()[1]
    if processes.world_size != world_size:
        raise ConfigError(
            f"only llmrl-train can use several processes, and there are {world_size}; start this command in a single "
            "process"
        )
    return processes


def check_deterministic(spec: EnvSpec, processes: ProcessGroup) -> None:
    """Raise ConfigError if a run has several processes and its environment is not deterministic."""
    if processes.world_size > 1 and not spec.deterministic:
        raise ConfigError(
            f"the games of env={spec.name} are not deterministic, and the {processes.world_size} processes of a run "
            "need equal games; start a single process"
        )
