"""The parts of an experiment, built from a resolved config, and the loop that these parts determine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from llmrl.config.builder import Builder
from llmrl.config.debugging import debugging
from llmrl.config.loop_sections import LOOPS, SETTINGS, WATCHED, LoopKind, agent_loop, section
from llmrl.core.errors import ConfigError, ErrorCollector, Incompatible, Misfit
from llmrl.core.model_protocols import ChatModel, Scorer, UsageMeter
from llmrl.core.observers import Observer
from llmrl.core.option_files import options
from llmrl.core.protocols import Agent, Controller, Proposer, Teacher, VecEnv
from llmrl.core.ram import check_games
from llmrl.core.ranges import SpendingCost
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.welfare_measures import Objective
from llmrl.experiment.build_env import build_env
from llmrl.experiment.distributed_checks import check_together, processes_here
from llmrl.experiment.loggers import check_loggers
from llmrl.experiment.members import parts_of
from llmrl.experiment.models import POLICIES, asking
from llmrl.experiment.resources import RunResources
from llmrl.experiment.run_lookup import parsed
from llmrl.experiment.watched_closely import FiniteCheck, with_one_episode
from llmrl.llms.client import ChatClient
from llmrl.loops.compute_requests import Loop
from llmrl.loops.loop_parts import LoopParts
from llmrl.run.artifacts import CONFIG_NAME
from llmrl.run.config_hash import RESOLVED
from llmrl.run.status import read_status

Config = Mapping[str, Any]


@dataclass
class Parts:
    """The built parts of one experiment. `agents` has one agent for each society of each proposal tried at once, or one
    agent; each has its own teacher, and `teacher` is the last agent's. `llm` is None when no part asks for a model.
    Welfare is `objective` less `spending_cost` for each unit that the mechanism spends, also without a principal."""

    env: VecEnv
    agents: Sequence[Agent]
    principal: Proposer | None
    teacher: Teacher | None
    llm: ChatModel | Scorer | None
    resources: RunResources
    kind: LoopKind
    objective: Objective
    spending_cost: float
    observers: Sequence[Observer] = ()

    @property
    def device(self) -> str:
        """The torch device of networks."""
        return self.resources.device

    def close(self) -> None:
        """Close the environment and the client of the language model."""
        self.env.close()
        if isinstance(self.llm, ChatClient):
            self.llm.close()


def games_of_a_society(config: Config) -> int:
    """Return the number of games that each society plays in one step of a principal."""
    design = config["design"]
    games: int = config["env"]["n_envs"] // (design["candidates"] * design["replicates"])
    return games


def build_parts(
    config: Config,
    llm: ChatClient | Scorer | None,
    render: bool | None = None,
    play_only: bool = False,
    folder: Path | None = None,
    proposals: int | None = None,
    resources: RunResources | None = None,
) -> Parts:
    """Build all parts of a resolved config; a combination of parts that cannot work raises ConfigError.

    Args:
        config: resolved config in plain containers.
        llm: model from `build_llm`.
        render: value for `env.render`, where the environment has that option; None: the config decides.
        play_only: whether to leave out observers, and the principal, whose language model might cost money.
        folder: run folder, for parts that keep readable files there; None: nothing is kept.
        proposals: number of agents, one society each; only used without a principal or with `play_only`. None: one.
        resources: device, cores and model of the run, if they were made already; None: they are made here.
    """
    config = located(config, play_only)
    resources = resources or RunResources(config)
    seeds = Seeds(config["seed"])
    device = resources.device
    trusted = config["trusted_modules"]
    env = build_env(_env_options(config, render), {"seeds": seeds.child("env"), "device": device}, trusted)
    asked = debugging(config)
    try:
        if asked.same_episode:
            env = with_one_episode(env)
        kind = loop_kind(config)
        has_principal = kind == "design"
        offered = {
            "spec": env.spec,
            "env_options": config["env"],
            "env_factory": getattr(env, "env_factory", None),
            "one_game": getattr(env, "one_game", None),
            "device": device,
            "llm": llm if isinstance(llm, ChatModel) else None,
            "scorer": llm if isinstance(llm, Scorer) else None,
            "has_principal": has_principal,
            "prompt_folder": None if config.get("prompts") is None else Path(config["prompts"]).expanduser(),
            "folder": folder,
            "processes": processes_here(),
        }
        if has_principal and env.spec.mechanism is None:
            raise Incompatible(Misfit.ABSENT, no_mechanism(env, config["principal"]))
        offered["cores"] = resources.cores
        design = config["design"]
        shared = has_principal and not play_only
        candidates, societies = (design["candidates"], design["replicates"]) if shared else (proposals or 1, 1)
        if candidates * societies > 1:
            offered["spec"] = replace(env.spec, n_envs=env.spec.games_per_group(candidates * societies))
        # In the order of `loops.societies.Societies`.
        agent_seeds = seeds.replicates(societies, shared and design["society_seeds"] == "consecutive") * candidates
        pairs = [_build_agent(config, offered, each, trusted) for each in agent_seeds]
        agents, teacher = [agent for agent, _ in pairs], pairs[-1][1]
        if kinds := getattr(agents[0], "kinds", None):
            env.spec = replace(env.spec, kinds=kinds)
        # A principal is told the objective it is judged on.
        judged, cost = judged_on(config, env.spec), spending_cost(config)
        offered["spec"] = replace(env.spec, objective=judged, spending_cost=cost)
        if kind in ("design", "search"):
            offered["proposals"] = proposals_of(config, kind)
        if has_principal:
            offered |= {"space": env.spec.proposals, "controller": None}
        elif kind == "search":
            offered |= _searched(agents[0].controller, env)
        builder = Builder({**offered, "seeds": seeds.child("principal")}, trusted)
        if kind == "search" and not can_search(config["principal"], builder):
            raise Incompatible(Misfit.ABSENT, needs_mechanism(config["principal"]["_target_"]))
        principal = None if play_only else builder.build(config["principal"], "principal")
        observers = [] if play_only else _observers(config, env, folder, kind)
        if asked.anomaly and kind in WATCHED and not play_only:
            observers.append(FiniteCheck())
    except BaseException:
        env.close()
        raise
    return Parts(env, agents, principal, teacher, llm, resources, kind, judged, cost, observers)


def _env_options(config: Config, render: bool | None) -> dict[str, Any]:
    """Return the options of the environment, with `render` set where the run needs frames.

    Args:
        config: resolved config.
        render: value for `env.render`; None: the config decides.
    """
    options = dict(config["env"])
    if render is None and config.get("play", {}).get("videos"):
        render = True
    if any(part.get("show_frames") for part in parts_of(config.get("agent") or {})):
        render = True
    if render is not None and "render" in options:
        options["render"] = render
    return options


def _build_agent(config: Config, offered: Mapping[str, Any], seeds: Seeds, trusted: Sequence[str]) -> tuple[Any, Any]:
    """Return the agent of a society and its teacher, which is None without one.

    Args:
        config: resolved config.
        offered: what parts may take, by the names of their arguments.
        seeds: seeds of the society.
        trusted: modules whose code a config may name.

    Raises:
        Incompatible: there is a teacher, and the agent cannot learn from one.
    """
    teacher = Builder({**offered, "seeds": seeds.child("teacher")}, trusted).build(config["teacher"], "teacher")
    builder = Builder({**offered, "seeds": seeds.child("agent"), "teacher": teacher}, trusted)
    if teacher is not None and not builder.needs(config["agent"], "teacher", "agent"):
        raise Incompatible(
            Misfit.UNTAUGHT, "a teacher is one more loss of a learning agent; use agent=ppo, or teacher=none"
        )
    return builder.build(config["agent"], "agent"), teacher


def located(config: Config, play_only: bool = False) -> Config:
    """Return the config to build an agent from, without `agent.init_from` where those weights are missing and unneeded.
    They are unneeded when a run is only planned, or when the agent gets the weights of a checkpoint. Agents around a
    language model always need them, because their checkpoints hold only what was trained.

    Args:
        config: config with its resolved run references (`run_references.resolved`); without them, the run of a preset
            counts as missing.
        play_only: whether the agent will be given the weights of a checkpoint.
    """
    begun = (config.get("agent") or {}).get("init_from")
    entry = (config.get(RESOLVED) or {}).get("agent.init_from")
    if not isinstance(begun, str) or (entry is None and not begun.startswith("preset:")):
        return config
    preset = entry is None or entry["as"].startswith("preset:")
    folder = Path(begun).expanduser()
    status = read_status(folder) if preset and entry is not None else None
    there = status is not None and status.state == "finished" if preset else folder.is_dir()
    whole = not Builder(trusted=config["trusted_modules"]).needs(config["agent"], "scorer", "agent")
    if not there and (whole or not play_only) and (preset or play_only):
        return {**config, "agent": {**config["agent"], "init_from": None}}
    return config


def loop_kind(config: Config) -> LoopKind:
    """Return the kind of loop that the parts determine, before any part is built.

    A principal governs the mechanism of a game (`design`), or proposes the parameters of an agent that is a function of
    them (`search`). Without a principal, the agent's class declares the loop (`Agent.loop`); an agent that needs
    proposed parameters only plays (`play`). `build_loop` changes `learn` to `play` if the built agent does not learn.

    Raises:
        ConfigError: a principal with an agent that learns in its own loop, or an agent that declares no loop.
    """
    loop = agent_loop(config["agent"], Builder(trusted=config["trusted_modules"]))
    if config["principal"].get("_target_") is None:
        return "play" if loop == "search" else loop
    if loop == "baseline":
        raise Incompatible(
            Misfit.UNTAUGHT, "agent=sb3 learns in a loop of its own, and nobody proposes anything to it: principal=none"
        )
    if loop == "clone":
        raise Incompatible(
            Misfit.UNTAUGHT, "agent=bc learns what others did, and nobody proposes anything to it: principal=none"
        )
    return "search" if loop == "search" else "design"


def can_search(principal: Config, builder: Builder) -> bool:
    """Return whether a principal can search any parameter space, and not only the mechanism of an environment."""
    return any(builder.needs(principal, name, "principal") for name in ("space", "controller"))


def needs_mechanism(principal: str) -> str:
    works = [
        name for name, option in options("principal").items() if option["_target_"] and can_search(option, Builder())
    ]
    return (
        f"{principal.rpartition('.')[2]} looks at what happens in a society under a mechanism and cannot search the "
        f"parameters of a policy; use principal={', '.join(works)}"
    )


def no_mechanism(env: VecEnv, principal: Config) -> str:
    """Return an error message: why a principal has nothing to govern in `env`, and which options would work."""
    works = [name for name, option in options("env").items() if option.get("mechanism")]
    searched = ""
    if hasattr(env, "evaluator") and can_search(principal, Builder()):
        agents = ", ".join(name for name, option in options("agent").items() if _is_function(option))
        searched = f"an agent whose parameters it can search, agent={agents}; or "
    return (
        f"a principal needs an environment with a mechanism, and {env.spec.name} has none (env.mechanism may be off); "
        f"use {searched}env={', '.join(works)} with their mechanism, or principal=none"
    )


def _is_function(agent: Config) -> bool:
    """Return whether an agent is a function of parameters that a principal can propose."""
    return agent_loop(agent, Builder()) == "search"


def proposals_of(config: Config, kind: Literal["design", "search"]) -> int:
    """Return how many vectors a principal proposes in a run, over all contexts; a race proposes none."""
    node = config[kind]
    return int(node["steps" if kind == "design" else "iterations"] * node["candidates"])


def build_loop(config: Config, parts: Parts, known: Callable[[], Any] | None = None) -> Loop:
    """Build the loop that the parts determine (`loop_kind`); agents that do not learn get the loop `play`. `known`
    returns the results of reference runs (`LoopParts.known`)."""
    kind = parts.kind
    if kind == "learn" and not parts.agents[0].learns:
        kind = "play"
    builder = Builder(trusted=config["trusted_modules"])
    settings = builder.build({"_target_": SETTINGS[kind], **config[section(kind)]}, section(kind))
    given = LoopParts(
        env=parts.env,
        agents=parts.agents,
        seeds=Seeds(config["seed"]).child("loop"),
        device=parts.device,
        objective=parts.objective,
        spending_cost=parts.spending_cost,
        principal=parts.principal,
        teacher=parts.teacher,
        meter=parts.llm if isinstance(parts.llm, UsageMeter) else None,
        observers=parts.observers,
        cores=parts.resources.cores,
        **({} if known is None else {"known": known}),
    )
    loop: Loop = builder.locate(LOOPS[kind], section(kind))(given, settings)
    return loop


def _observers(config: Config, env: VecEnv, folder: Path | None, kind: LoopKind) -> list[Observer]:
    """Build the user's own observers.

    Raises:
        ConfigError: an object is not an observer, or this kind of run cannot be observed.
    """
    nodes = config.get("observers") or []
    if nodes and kind not in WATCHED:
        raise ConfigError(
            f"observers={[node.get('_target_') for node in nodes]}: this run is a {kind}, whose episodes are played in "
            f"other processes, where nobody watches; observers are for runs that are {', '.join(WATCHED)}"
        )
    builder = Builder({"spec": env.spec, "env": env, "folder": folder}, config["trusted_modules"])
    built = [builder.build(node, f"observers[{i}]") for i, node in enumerate(nodes)]
    for i, each in enumerate(built):
        if not isinstance(each, Observer):
            raise ConfigError(
                f"observers[{i}]: {type(each).__name__} is no observer; derive it from llmrl.core.observers.Observer"
            )
    return built


def judged_on(config: Config, spec: EnvSpec) -> Objective:
    """Return the welfare measure of a society: `design.objective`, or else the environment's own.

    Raises:
        ConfigError: `design.objective` names no known objective.
    """
    builder = Builder(trusted=config["trusted_modules"])
    chosen: Objective | None = builder.value(config["design"]["objective"], Objective | None, "design.objective")
    return chosen or spec.objective


def spending_cost(config: Config) -> float:
    """Return `design.spending_cost`: the loss of welfare for each unit of reward that the mechanism spends.

    Raises:
        ConfigError: the value is not a number in [0, 1e6].
    """
    builder = Builder(trusted=config["trusted_modules"])
    return float(builder.value(config["design"]["spending_cost"], SpendingCost, "design.spending_cost"))


def _searched(controller: Controller, env: VecEnv) -> dict[str, Any]:
    """Return what to inject into a principal that searches the parameters of `controller`; set `env.clip_actions` as
    the controller asks."""
    if hasattr(env, "clip_actions"):
        env.clip_actions = bool(getattr(controller, "clip_actions", True))
    return {"space": controller.space, "controller": controller}


def _check_init_from(config: Config) -> None:
    """Raise ConfigError if `agent.init_from` names a folder that is no run folder."""
    begun = config["agent"].get("init_from")
    if not isinstance(begun, str) or "agent.init_from" in (config.get(RESOLVED) or {}) or parsed(begun) is not None:
        return
    if not (Path(begun).expanduser() / CONFIG_NAME).is_file():
        raise ConfigError(
            f"agent.init_from={begun} is not a run folder (no {CONFIG_NAME}); give one like outputs/<name>/<run>/s0"
        )


def check_values(config: Config, resources: RunResources | None = None) -> None:
    """Raise ConfigError for values that cannot work, as far as this can be checked without building a part."""
    builder = Builder(trusted=config["trusted_modules"])
    parts = {group: config[group] for group in ("env", "agent", "principal", "teacher", "hardware")}
    parts |= {f"observers[{i}]": node for i, node in enumerate(config.get("observers") or ())}
    parts["report"] = config.get("report") or {}  # the config of an imported run may lack it
    errors = ErrorCollector()
    for where, node in parts.items():
        with errors.collect():
            builder.check(node, where)
    errors.raise_all()
    _check_init_from(config)
    check_games(config["env"].get("n_envs"))
    spending_cost(config)
    check_together(config, resources or RunResources(config))
    check_loggers(config)
    if asking(config):
        others = {f"llm.others.{name}": node for name, node in (config["llm"].get("others") or {}).items()}
        for where, node in {"llm": config["llm"], **others}.items():
            builder.check({name: value for name, value in node.items() if name not in POLICIES}, where)
        for policy in ("retry", "limits", "budget", "max_invalid"):
            if config["llm"].get(policy) is not None:
                builder.check(config["llm"][policy], f"llm.{policy}")
    kind = loop_kind(config)
    # Whether an agent learns may be known only when it is built.
    for each in ("learn", "play") if kind == "learn" else (kind,):
        if section(each) in config:
            builder.check({"_target_": SETTINGS[each], **config[section(each)]}, section(each))
