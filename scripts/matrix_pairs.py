"""Tries two parts together, in the smallest experiment that has both: does it run, or why is it refused?"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llmrl.config.builder import Builder
from llmrl.config.loop_sections import declared_loop
from llmrl.core.errors import ConfigError, Incompatible, LlmrlError
from llmrl.core.option_files import list_option_names, load_option
from llmrl.core.seeding import Seeds
from llmrl.core.services import EnvServices
from llmrl.core.spaces import EnvSpec
from llmrl.experiment.build_env import build_env
from llmrl.experiment.composition import compose_plain
from llmrl.experiment.config_completion import groups_using_model
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.parts import build_parts
from llmrl.llms.local.small import SmallModelShape, make_small_model

TABLES: dict[str, tuple[str, str]] = {
    "env-agent": ("env", "agent"),
    "env-principal": ("env", "principal"),
    "agent-teacher": ("agent", "teacher"),
    "agent-llm": ("agent", "llm"),
    "principal-citizen": ("principal", "citizen"),
}
"""The tables of the page: the groups whose options are their rows and columns; of citizens see `CITIZENS`."""

Choices = dict[str, str]
"""A chosen option for each of some groups."""
Settings = dict[str, Any]
"""Values by their place in a config, with dots."""

STEPS = 3
SMALL: Settings = {
    "env.n_envs": 2,
    "env.n_agents": 3,  # of an escape room, two of whom hold a lever
    "env.max_catch": 2,
    "env.horizon": STEPS,
    "hardware.cores": 1,
    "learn.env_steps": 1,  # rounded up to one rollout, and so to one update
    "learn.rollout_steps": STEPS,
    "learn.evaluation_interval": 0,
    "learn.evaluate_episodes": 1,
    "llm.make.format_steps": 2,
    "play.episodes": 2,
    "clone.epochs": 1,
    "clone.evaluation_interval": 0,
    "clone.evaluate_episodes": 1,
    "principal.nominations": 1,
    "design.steps": 2,
    "design.candidates": 1,
    "design.replicates": 1,
    "design.rollout_steps": None,
    "design.adapt_rounds": 1,
    "design.validate_episodes": 2,
    "design.references": 0,
    "design.confirm_steps": 0,
    "design.evaluations": 0,
    "search.iterations": 2,
    "search.candidates": 1,
    "search.episodes": 1,
    "search.warmup": 0,
    "search.race": 0,
    "search.evaluation_interval": 0,
    "search.evaluate_episodes": 1,
    "agent.rank": 1,
    "agent.q.warmup": 0,
    "agent.q.batch_size": 2,
    "teacher.samples": 1,
    "llm.make.width": 8,
    "llm.make.layers": 1,
    "llm.make.heads": 1,
    "llm.make.vocabulary": 300,
    "llm.max_invalid": None,
    "checkpoint_seconds": 1e9,
}
"""Sizes of every experiment here, each where the experiment has that key."""
TAUGHT = ("simple_doorkey", "simple_spread")
"""Environments in which teachers are tried, the first one in which the agent runs."""
HOMES = ("escape_room", "cartpole", "frozen_lake", "babyai_text", "simple_doorkey", "cleanup")
"""Environments in which an agent is tried first, where the table is not about environments."""
CITIZENS: dict[str, tuple[Choices, Settings]] = {
    "ppo": ({}, {}),
    "llm_ppo": ({"llm": "small_scorer"}, {"agent.tune": "lora"}),
    "llm_player": ({"llm": "small_chat"}, {}),
    "mixed": (
        {"llm": "small_chat"},
        {"agent.members": [{"count": 1, "agent": "llm_player"}, {"count": 2, "agent": "ppo"}]},
    ),
}
"""Agents that learn as citizens of a fishery under a principal, with further choices and settings."""
STATES = 4
"""Numbers of an observation that a table cuts into two bins; the others are one bin."""
RUNS, SEARCHES, BUILDS, UNASKED, OMITTED = "runs", "searches", "builds", "unasked", "omitted"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a pair of parts.

    Attributes:
        what: `runs`; `searches`, where a principal has no mechanism and searches a policy; `builds`, where a model
            cannot be asked here; `unasked`, where the agent asks no model; the value of an `IncompatibilityReason`;
            or `omitted`.
        said: message of a refusal.
    """

    what: str
    said: str = ""

    @property
    def works(self) -> bool:
        return self.what in (RUNS, SEARCHES, BUILDS, UNASKED)


def parts(group: str) -> list[str]:
    """Return the options of a group that are tried.

    These are all, but of models the first of each kind, and no environment that needs a server.
    """
    if group == "citizen":
        return list(CITIZENS)
    return list(kinds()) if group == "llm" else [name for name in list_option_names(group) if name != "openenv"]


@functools.cache
def kinds() -> dict[str, list[str]]:
    """Return the options of `llm` by the first of their kind: of one class, and made for the environment or not."""
    found: dict[tuple[Any, bool], list[str]] = {}
    for name in list_option_names("llm"):
        node = load_option("llm", name)
        found.setdefault((node["_target_"], node.get("make") is not None), []).append(name)
    return {alike[0]: alike for alike in found.values()}


def pairs(table: str) -> Iterator[tuple[str, str]]:
    """Yield the rows and columns of a table."""
    rows, columns = TABLES[table]
    for row in parts(rows):
        for column in parts(columns):
            yield row, column


@dataclass
class Pairs:
    """Tries pairs of parts. What was tried is not tried again.

    Args:
        folder: for the runs.
        composed: whether each config is composed by Hydra, which takes most of the time; else an environment's config
            is composed once and gets the options of its parts.
    """

    folder: Path
    composed: bool = False
    known: dict[str, tuple[Outcome, Path | None]] = field(default_factory=dict)

    def outcome(self, table: str, row: str, column: str) -> Outcome:
        """Return what becomes of the options `row` and `column` of the table's groups."""
        match table:
            case "env-agent":
                return self._tried({"env": row, "agent": column})[0]
            case "env-principal":
                return self._governed(row, column)
            case "agent-teacher":
                home = self._home(row) if column == "none" else self._school(row)
                return self._tried({"env": home, "agent": row, "teacher": column})[0]
            case "principal-citizen":
                return self._citizen(row, column)
            case _:
                return self._asked(row, column)

    def _governed(self, env: str, principal: str) -> Outcome:
        """Try the principal with a society that learns, or without a mechanism with a policy that can be searched."""
        if principal == "none" or spec_of(env).mechanism is not None or "tax" in _base(env)["env"]:
            return self._tried({"env": env, "agent": "ppo", "principal": principal})[0]
        searches, _ = self._tried({"env": env, "agent": "projection", "principal": principal})
        return replace(searches, what=SEARCHES) if searches.works else searches

    def _citizen(self, principal: str, agent: str) -> Outcome:
        """Try citizens that learn under the principal, two societies of two games; a chat model learns in all roles."""
        choices, settings = CITIZENS[agent]
        settings = {**settings, "env.n_envs": 4, "design.candidates": 2, "llm.make.longest": 16384}
        if choices.get("llm") == "small_chat":
            settings["llm.learn"] = {
                **compose_plain("train", "llm=small_chat", "llm/learn=grpo")["llm"]["learn"],
                "tune": "lora",
            }
            settings["llm.learn"]["group_size"] = 2
        chosen = {"env": "fishery", "agent": agent, "principal": principal, **choices}
        outcome, _ = self._tried(chosen, settings)
        if outcome.what == OMITTED and outcome.said.startswith("design.candidates"):
            outcome, _ = self._tried(chosen, {**settings, "design.candidates": 1})
        return outcome

    def _asked(self, agent: str, llm: str) -> Outcome:
        """Try the model in the agent's first environment; without a key or a server the parts are only built."""
        choices = {"env": self._home(agent), "agent": agent}
        if not groups_using_model({**_base(choices["env"]), "agent": _option("agent", agent)}):
            alone, _ = self._tried(choices)
            return replace(alone, what=UNASKED) if alone.works else alone
        return self._tried({**choices, "llm": llm})[0]

    def _home(self, agent: str) -> str:
        """Return the first environment in which an agent runs."""
        first = [env for env in parts("env") if agent.startswith(env)]  # cleanup_society
        tried = list(dict.fromkeys([*first, *HOMES, *parts("env")]))
        return next((env for env in tried if self.outcome("env-agent", env, agent).works), tried[0])

    def _school(self, agent: str) -> str:
        return next((env for env in TAUGHT if self.outcome("env-agent", env, agent).works), TAUGHT[0])

    def _tried(self, choices: Choices, more: Settings | None = None) -> tuple[Outcome, Path | None]:
        """Return what becomes of parts together, and the folder of their run."""
        key = json.dumps([choices, more], sort_keys=True)
        if key not in self.known:
            try:
                self.known[key] = self._run(choices, more or {})
            except Incompatible as error:
                self.known[key] = Outcome(error.reason.value, str(error)), None
            except LlmrlError as error:
                self.known[key] = Outcome(OMITTED, str(error)), None
        return self.known[key]

    def _run(self, choices: Choices, more: Settings) -> tuple[Outcome, Path | None]:
        config, typed = self._config(choices, more)
        named = [f"{group}={name}" for group, name in choices.items()]
        experiment = Experiment.compose(*typed) if self.composed else Experiment(config, named)
        if "api_key_env" in config["llm"] and groups_using_model(config):
            experiment.plan()
            return Outcome(BUILDS), None
        return Outcome(RUNS), experiment.run().folder

    def _config(self, choices: Choices, more: Settings | None = None) -> tuple[dict[str, Any], list[str]]:
        """Return the config of parts with the sizes that all have here, and the overrides that compose it."""
        chosen = dict(choices)
        agent, builder = _option("agent", chosen["agent"]), Builder()
        if chosen["agent"] == "teacher":
            chosen.setdefault("teacher", "oracle")
        if declared_loop(agent, builder) == "search":
            chosen.setdefault("principal", "random")
        chosen.setdefault("llm", "small_scorer" if builder.needs(agent, "scorer", "agent") else "scripted")
        config = copy.deepcopy(_base(chosen["env"]))
        config |= {group: copy.deepcopy(_option(group, name)) for group, name in chosen.items() if group != "env"}
        settings: Settings = {**SMALL, **self._fitting(chosen, config), **(more or {})}
        settings |= {"output_root": str(self.folder), "name": "matrix"}
        own = [*(f"{group}={name}" for group, name in chosen.items()), *_needed("env", chosen["env"]), "loggers=[]"]
        if "llm.learn" in settings:
            own.append("llm/learn=grpo")  # only a chosen method has keys to override
        typed = [f"{place}={_typed(value)}" for place, value in settings.items() if _put(config, place, value)]
        return {**config, "loggers": {}}, [*own, *typed]

    def _fitting(self, chosen: Choices, config: dict[str, Any]) -> Settings:
        """Return what these parts need to be told to work together at all, as their messages say."""
        found: Settings = {}
        env, agent, llm = chosen["env"], config["agent"], config["llm"]
        if "substrate" in config["env"]:
            found["env.engine"] = "native"  # needs no other package and no processes
        if "role" in agent and config["env"].get("observe") == ["pixels"]:
            found["env.observe"] = ["pixels", "grid"]
        if channel := _texts(env):
            found |= dict.fromkeys(("agent.text_channel", "agent.student.text_channel", "llm.make.channel"), channel)
        if "members" in agent:
            others = spec_of(env).n_agents - 1
            found["agent.members"] = [{"count": 1, "agent": "ppo"}, {"count": others, "agent": "random"}][: others + 1]
        if "bins" in agent and "state" not in (shown := spec_of(env).observation) and "vector" in shown:
            found["agent.bins"] = [[-1, 1, 2 if i < STATES else 1] for i in range(shown["vector"].shape[0])]
        maps = [name for name, channel in spec_of(env).observation.items() if len(channel.shape) == 3]
        if maps and agent.get("critic", "own") != "own":
            found["agent.core"] = "mlp"
        if agent.get("init_from") is not None:
            # Raises if a society of another environment is meant; its training, of hours, is left out.
            Experiment({**config, "output_root": str(self.folder), "name": "matrix"})
            found["agent.init_from"] = None
        if "data" in agent and (data := self._recorded(env)):
            found["agent.data"] = data
        if chosen.get("principal", "none") != "none" and "tax" in config["env"]:
            found["env.tax"] = True
        if chosen.get("principal") == "metagrad" and "welfare" in config["env"]:
            found["env.welfare"] = "utilitarian"
        if chosen.get("principal") == "listed":
            found["principal.vectors"] = self._corners(chosen)
        loads = llm.get("make") is None
        if loads and ("make" in llm or "chat_template" in llm):
            found |= {"llm.model": str(self._model(llm["_target_"])), "llm.max_tokens": 4}
        if loads and "chat_template" in llm:
            found["llm.chat_template"] = str(self._model("") / "chat.jinja")
        if "calls" in llm:
            found["llm.calls"] = str(self._tried({**chosen, "llm": "scripted"})[1])
        return found

    def _recorded(self, env: str) -> str | None:
        """Return a run that has kept what was read in an environment, for who imitates it."""
        player = "llm_player" if _texts(env) == "text" else "random"
        _, folder = self._tried({"env": env, "agent": player}, {"play.trajectories": True})
        return None if folder is None else str(folder)

    def _corners(self, chosen: Choices) -> list[list[float]] | None:
        """Return two vectors that can be proposed; None where nothing can."""
        # Agents that are language models cannot be built without one.
        agent = {"agent": "ppo"} if spec_of(chosen["env"]).mechanism is not None else {}
        config, _ = self._config({**chosen, **agent, "principal": "random"})
        try:
            built = build_parts(config, None)
        except ConfigError:
            return None
        built.close()
        assert built.principal is not None
        return [built.principal.space.low.tolist(), built.principal.space.high.tolist()]

    def _model(self, target: str) -> Path:
        """Return the folder of a tiny language model of the architecture that a class of models loads."""
        kind: Any = "seq2seq" if "seq2seq" in target.lower() else "causal"
        folder = self.folder / f"tiny_{kind}"
        if not folder.exists():
            make_small_model(
                folder,
                ["a tiny model for a try"],
                kind,
                shape=SmallModelShape(width=8, layers=1, heads=1, longest=4096),
            )
            (folder / "chat.jinja").write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
        return folder


def _needed(group: str, name: str) -> list[str]:
    """Return overrides without which an option composes no config."""
    given = {
        "env=gymnasium": ["env.id=CartPole-v1", "env.text=auto"],
        "env=openspiel": ["env.id=kuhn_poker"],
        "env=pettingzoo": ["env.id=pettingzoo.classic.rps_v2"],
        "env=textarena": ["env.id=TicTacToe-v0"],
        "llm=replay": ["llm.calls=?"],
    }
    return given.get(f"{group}={name}", [])


def _option(group: str, name: str) -> Any:
    """Return an option as a config has it, which an environment's choices do not change."""
    return compose_plain("train", "env=nim", f"{group}={name}", *_needed(group, name))[group]


def _base(env: str) -> dict[str, Any]:
    return compose_plain("train", f"env={env}", "agent=random", *_needed("env", env))


@functools.cache
def spec_of(env: str, words: bool = False) -> EnvSpec:
    """Return the spec of a small environment; with `words` its players are told in words what they see.

    Raises:
        ConfigError: there are no words.
    """
    config = copy.deepcopy(_base(env))
    for place, value in SMALL.items():
        _put(config, place, value)
    if "substrate" in config["env"]:
        config["env"]["engine"] = "native"
    if words:
        config["env"]["observe"] = [*config["env"]["observe"], "text"]
    built = build_env(config["env"], Builder(EnvServices(Seeds(0))))
    built.close()
    return built.spec


def _texts(env: str) -> str | None:
    """Return the channel of texts of an environment; None: there is none."""
    shown = spec_of(env).observation
    if (channel := next((name for name in ("prompt", "text") if name in shown), None)) is not None:
        return channel
    if "observe" not in _base(env)["env"]:
        return None
    try:
        spec_of(env, words=True)
    except ConfigError:
        return None
    return "text"


def _put(config: dict[str, Any], place: str, value: Any) -> bool:
    """Set what stands at a place of a config; return whether it has that place."""
    *path, last = place.split(".")
    node: Any = config
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    if not isinstance(node, dict) or last not in node:
        return False
    node[last] = value
    return True


def _typed(value: Any) -> str:
    """Return a value as Hydra reads it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case Mapping():
            return "{" + ", ".join(f"{key}: {_typed(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_typed, value)) + "]"
        case str():
            return f"'{value}'"
    return str(value)
