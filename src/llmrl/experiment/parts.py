"""The parts of an experiment, built from a resolved config, and the loop that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from llmrl.config.builder import Builder
from llmrl.config.loop_sections import LOOPS, SETTINGS, WATCHED, LoopKind, agent_loop, section
from llmrl.core.errors import ConfigError
from llmrl.core.objectives import Objective
from llmrl.core.observers import Observer
from llmrl.core.option_files import options
from llmrl.core.protocols import Agent, ChatModel, Controller, Meter, Proposer, Scorer, Teacher, VecEnv
from llmrl.core.ram import check_games
from llmrl.core.ranges import NonNegativeFloat
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.experiment.distributed_checks import check_together, processes_here
from llmrl.experiment.environments import build_env
from llmrl.experiment.loggers import check_loggers
from llmrl.experiment.means import Means
from llmrl.experiment.models import POLICIES, asking
from llmrl.llms.client import ChatClient
from llmrl.loops.loop_parts import LoopParts
from llmrl.loops.requests import Loop
from llmrl.run.folder import RESOLVED
from llmrl.run.status import read_status

Config = Mapping[str, Any]


@dataclass
class Parts:
    """What one experiment is made of: one agent, with a teacher of its own, for each society of the proposals that are
    tried at once (else one); `teacher` is the last agent's, `llm` is None when no part asks for a model, and agents
    alone, too, are judged on `objective` less `spending_cost` for each unit that the mechanism spends."""

    env: VecEnv
    agents: Sequence[Agent]
    principal: Proposer | None
    teacher: Teacher | None
    llm: ChatModel | Scorer | None
    means: Means
    kind: LoopKind
    objective: Objective
    spending_cost: float
    observers: Sequence[Observer] = ()

    @property
    def device(self) -> str:
        """The torch device of networks."""
        return self.means.device

    def close(self) -> None:
        self.env.close()
        if isinstance(self.llm, ChatClient):
            self.llm.close()


def games_of_a_society(config: Config) -> int:
    """Games that each society of a principal's step plays."""
    design = config["design"]
    games: int = config["env"]["n_envs"] // (design["candidates"] * design["societies"])
    return games


def build_parts(
    config: Config,
    llm: ChatClient | Scorer | None,
    render: bool | None = None,
    play_only: bool = False,
    folder: Path | None = None,
    proposals: int | None = None,
    means: Means | None = None,
) -> Parts:
    """All parts of a resolved config; refuses combinations that cannot work before any game starts.

    Args:
        config: resolved, plain containers.
        llm: from `build_llm`.
        render: overrides `env.render` where the environment has that option.
        play_only: leave out the principal, whose language model might cost money; the agents stay as they were built.
        folder: of the run, for parts that keep something readable there; None: nothing is kept.
        proposals: that are tried at once, with one society each; None: as many as the config says, or with `play_only`
            one.
        means: what the run is computed with, if that is known already.
    """
    config = located(config, play_only)
    means = means or Means(config)
    seeds = Seeds(config["seed"])
    device = means.device
    trusted = config["trusted_modules"]
    env_node = dict(config["env"])
    if render is None and config.get("play", {}).get("videos"):
        render = True
    if (config.get("agent") or {}).get("show_frames"):
        render = True
    if render is not None and "render" in env_node:
        env_node["render"] = render
    env = build_env(env_node, {"seeds": seeds.child("env"), "device": device}, trusted)
    try:
        kind = loop_kind(config)
        governed = kind == "design"
        offered = {
            "spec": env.spec,
            "env_options": config["env"],
            "maker": getattr(env, "maker", None),
            "one_game": getattr(env, "one_game", None),
            "device": device,
            "llm": llm if isinstance(llm, ChatModel) else None,
            "scorer": llm if isinstance(llm, Scorer) else None,
            "governed": governed,
            "prompt_folder": None if config.get("prompts") is None else Path(config["prompts"]).expanduser(),
            "folder": folder,
            "processes": processes_here(),
        }
        if governed and env.spec.mechanism is None:
            raise ConfigError(no_mechanism(env, config["principal"]))
        offered["cores"] = means.cores
        design = config["design"]
        shared = governed and not play_only
        candidates, societies = (design["candidates"], design["societies"]) if shared else (proposals or 1, 1)
        if candidates * societies > 1:
            offered["spec"] = replace(env.spec, n_envs=env.spec.games_per_group(candidates * societies))
        agents, teacher = [], None
        # In the order of `loops.societies.Societies`.
        for own in seeds.replicates(societies, shared and design["society_seeds"] == "consecutive") * candidates:
            teacher = Builder({**offered, "seeds": own.child("teacher")}, trusted).build(config["teacher"], "teacher")
            builder = Builder({**offered, "seeds": own.child("agent"), "teacher": teacher}, trusted)
            if teacher is not None and not builder.needs(config["agent"], "teacher", "agent"):
                raise ConfigError("a teacher is one more loss of a learning agent; use agent=ppo, or teacher=none")
            agents.append(builder.build(config["agent"], "agent"))
        # A principal is told the objective it is judged on.
        judged, cost = judged_on(config, env.spec), spending_cost(config)
        offered["spec"] = replace(env.spec, objective=judged, spending_cost=cost)
        if kind in ("design", "search"):
            offered["proposals"] = proposals_of(config, kind)
        if governed:
            offered |= {"space": env.spec.proposals, "controller": None}
        elif kind == "search":
            offered |= _searched(agents[0].controller, env)
        builder = Builder({**offered, "seeds": seeds.child("principal")}, trusted)
        if kind == "search" and not can_search(config["principal"], builder):
            raise ConfigError(needs_mechanism(config["principal"]["_target_"]))
        principal = None if play_only else builder.build(config["principal"], "principal")
        observers = [] if play_only else _observers(config, env, folder, kind)
    except BaseException:
        env.close()
        raise
    return Parts(env, agents, principal, teacher, llm, means, kind, judged, cost, observers)


def located(config: Config, play_only: bool = False) -> Config:
    """Return the config to build an agent from: without first weights where these are not there and not needed, because
    the run is only planned, or has weights of its own, which are played. Agents around a language model need them at
    every start, as their checkpoints have only what they have learned.

    Args:
        config: with the runs that it refers to (`run_references.resolved`); of one without them, a preset's run counts
            as not there.
        play_only: the agent is to be given the weights of a checkpoint.
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
    """The loop that follows from the parts, before any is built.

    A principal governs a game's mechanism (`design`), or proposes the parameters of an agent that is a function of
    them (`search`). Without one, it is the loop that the agent's class declares (`Agent.loop`), and who waits for
    parameters plays (`play`). Agents that could learn and do not play, too, which is known when they are built.

    Raises:
        ConfigError: an agent that learns by itself under a principal, or one that declares no loop.
    """
    loop = agent_loop(config["agent"], Builder(trusted=config["trusted_modules"]))
    if config["principal"].get("_target_") is None:
        return "play" if loop == "search" else loop
    if loop == "baseline":
        raise ConfigError("agent=sb3 learns in a loop of its own, and nobody proposes anything to it: principal=none")
    if loop == "clone":
        raise ConfigError("agent=bc learns what others did, and nobody proposes anything to it: principal=none")
    return "search" if loop == "search" else "design"


def can_search(principal: Config, builder: Builder) -> bool:
    """Whether a principal takes any space, and not the mechanism of an environment only."""
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
    """Why a principal has nothing to govern in `env`, and what would work."""
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
    """Whether an agent is a function of parameters that a principal can propose."""
    return agent_loop(agent, Builder()) == "search"


def proposals_of(config: Config, kind: Literal["design", "search"]) -> int:
    """Vectors that a principal proposes in a run, in all contexts together; a race proposes none."""
    node = config[kind]
    return int(node["steps" if kind == "design" else "iterations"] * node["candidates"])


def build_loop(config: Config, parts: Parts, known: Callable[[], Any] | None = None) -> Loop:
    """The loop that follows from the parts (`loop_kind`); agents that do not learn only `play`. `known` tells the
    reference lines of a principal's run when it begins."""
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
        meter=parts.llm if isinstance(parts.llm, Meter) else None,
        observers=parts.observers,
        cores=parts.means.cores,
        **({} if known is None else {"known": known}),
    )
    loop: Loop = builder.locate(LOOPS[kind], section(kind))(given, settings)
    return loop


def _observers(config: Config, env: VecEnv, folder: Path | None, kind: LoopKind) -> list[Observer]:
    """The user's own observers.

    Raises:
        ConfigError: one of them is none, or cannot watch this run.
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
    """The measure of welfare that a society is judged on: `design.objective`, or the environment's own.

    Raises:
        ConfigError: there is no such objective.
    """
    builder = Builder(trusted=config["trusted_modules"])
    chosen: Objective | None = builder.value(config["design"]["objective"], Objective | None, "design.objective")
    return chosen or spec.objective


def spending_cost(config: Config) -> float:
    """What a society's welfare loses for each unit of reward that the mechanism spends: `design.spending_cost`.

    Raises:
        ConfigError: it is no finite number >= 0.
    """
    builder = Builder(trusted=config["trusted_modules"])
    return float(builder.value(config["design"]["spending_cost"], NonNegativeFloat, "design.spending_cost"))


def _searched(controller: Controller, env: VecEnv) -> dict[str, Any]:
    """What a principal is offered that searches the parameters of `controller`, which plays in `env` as it asks for."""
    if hasattr(env, "clip_actions"):
        env.clip_actions = bool(getattr(controller, "clip_actions", True))
    return {"space": controller.space, "controller": controller}


def check_values(config: Config, means: Means | None = None) -> None:
    """Raise ConfigError for values that no run could be built with, as far as can be told without building one."""
    builder = Builder(trusted=config["trusted_modules"])
    if type(config["seed"]) is not int or config["seed"] < 0:
        raise ConfigError(f"seed={config['seed']!r}: a whole number >= 0 is needed")
    for group in ("env", "agent", "principal", "teacher", "hardware"):
        builder.check(config[group], group)
    for i, node in enumerate(config.get("observers") or ()):
        builder.check(node, f"observers[{i}]")
    if config.get("report"):  # configs of runs from elsewhere may have none
        builder.check(config["report"], "report")
    check_games(config["env"].get("n_envs"))
    spending_cost(config)
    check_together(config, means or Means(config))
    check_loggers(config)
    if asking(config):
        builder.check({name: value for name, value in config["llm"].items() if name not in POLICIES}, "llm")
        for policy in ("retry", "limits", "budget", "max_invalid"):
            if config["llm"].get(policy) is not None:
                builder.check(config["llm"][policy], f"llm.{policy}")
    kind = loop_kind(config)
    # Whether an agent learns may be known only when it is built.
    for each in ("learn", "play") if kind == "learn" else (kind,):
        if section(each) in config:
            builder.check({"_target_": SETTINGS[each], **config[section(each)]}, section(each))
