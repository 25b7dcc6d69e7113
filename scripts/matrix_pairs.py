"""Test the compatibility of two parts in a minimal experiment."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llmrl.config.builder import Builder
from llmrl.config.loop_sections import get_declared_loop
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
"""Groups whose options are the rows and columns of each table; the citizens are those of `CITIZENS`."""

Choices = dict[str, str]
"""Selected option by group."""
Settings = dict[str, Any]
"""Values by dotted config key."""

STEPS = 3
SMALL: Settings = {
    "env.n_envs": 2,
    "env.n_agents": 3,  # the minimum of the escape room with a lever that needs two agents
    "env.max_catch": 2,
    "env.horizon": STEPS,
    "hardware.cores": 1,
    "learn.env_steps": 1,  # rounded up to one rollout and one update
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
    "search.confirm_candidates": 0,
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
"""Sizes of all experiments, for the keys that the experiment has."""
TEACHER_ENVS = ("simple_doorkey", "simple_spread")
"""Environments for tests of teachers; the first one that supports the agent is used."""
PREFERRED_ENVS = ("escape_room", "cartpole", "frozen_lake", "babyai_text", "simple_doorkey", "cleanup")
"""Preferred environments for tests of an agent in tables without environments."""
CITIZENS: dict[str, tuple[Choices, Settings]] = {
    "ppo": ({}, {}),
    "llm_ppo": ({"llm": "small_scorer"}, {"agent.tune": "lora"}),
    "llm_player": ({"llm": "small_chat"}, {}),
    "mixed": (
        {"llm": "small_chat"},
        {"agent.members": [{"count": 1, "agent": "llm_player"}, {"count": 2, "agent": "ppo"}]},
    ),
}
"""Learning agents in a fishery with a principal, with their additional choices and settings."""
BINNED_NUMBERS = 4
"""Number of leading components of an observation with two bins; the others have one bin."""
RUNS, SEARCHES, BUILDS, NO_MODEL, OMITTED = "runs", "searches", "builds", "unasked", "omitted"


@dataclass(frozen=True)
class Outcome:
    """Outcome of the test of a pair of parts.

    Attributes:
        status: `runs`; `searches` if there is no mechanism and the principal searches a policy; `builds` if the model
            is not available and the parts are only built; `unasked` if the agent does not use a language model; the
            value of an `IncompatibilityReason`; or `omitted` if the pair is rejected for another reason.
        message: message of the error, or an empty string.
    """

    status: str
    message: str = ""

    @property
    def works(self) -> bool:
        return self.status in (RUNS, SEARCHES, BUILDS, NO_MODEL)


def list_options(group: str) -> list[str]:
    """Return the tested options of a group.

    These are all options except environments that need a server, and one option for each class of language models.
    """
    if group == "citizen":
        return list(CITIZENS)
    return list(group_models()) if group == "llm" else [name for name in list_option_names(group) if name != "openenv"]


@functools.cache
def group_models() -> dict[str, list[str]]:
    """Group the options of `llm` by class and by whether the model is created for the environment.

    Returns:
        Options of each group, by its first option.
    """
    groups: dict[tuple[Any, bool], list[str]] = {}
    for name in list_option_names("llm"):
        node = load_option("llm", name)
        groups.setdefault((node["_target_"], node.get("make") is not None), []).append(name)
    return {options[0]: options for options in groups.values()}


def iterate_pairs(table: str) -> Iterator[tuple[str, str]]:
    """Yield all (row, column) pairs of a table."""
    rows, columns = TABLES[table]
    for row in list_options(rows):
        for column in list_options(columns):
            yield row, column


@dataclass
class PairTester:
    """Compatibility test of pairs of parts, with a cache of outcomes.

    Args:
        folder: folder of the runs.
        use_hydra: whether Hydra composes each config, which takes most of the time. Otherwise, the config of an
            environment is composed once, and the options of the parts are inserted.
    """

    folder: Path
    use_hydra: bool = False
    cache: dict[str, tuple[Outcome, Path | None]] = field(default_factory=dict)

    def test_pair(self, table: str, row: str, column: str) -> Outcome:
        """Return the outcome of the options `row` and `column` of the groups of a table."""
        match table:
            case "env-agent":
                return self._run_cached({"env": row, "agent": column})[0]
            case "env-principal":
                return self._test_principal(row, column)
            case "agent-teacher":
                home = self._find_env(row) if column == "none" else self._find_teacher_env(row)
                return self._run_cached({"env": home, "agent": row, "teacher": column})[0]
            case "principal-citizen":
                return self._test_citizen(row, column)
            case _:
                return self._test_model(row, column)

    def _test_principal(self, env: str, principal: str) -> Outcome:
        """Test a principal with learning agents, or with a searchable policy if there is no mechanism."""
        if principal == "none" or build_spec(env).mechanism is not None or "tax" in _compose_base_config(env)["env"]:
            return self._run_cached({"env": env, "agent": "ppo", "principal": principal})[0]
        searches, _ = self._run_cached({"env": env, "agent": "projection", "principal": principal})
        return replace(searches, status=SEARCHES) if searches.works else searches

    def _test_citizen(self, principal: str, agent: str) -> Outcome:
        """Test learning citizens with a principal, in two societies with two games; chat models learn in all roles."""
        choices, settings = CITIZENS[agent]
        settings = {**settings, "env.n_envs": 4, "design.candidates": 2, "llm.make.longest": 16384}
        if choices.get("llm") == "small_chat":
            settings["llm.learn"] = {
                **compose_plain("train", "llm=small_chat", "llm/learn=grpo")["llm"]["learn"],
                "tune": "lora",
            }
            settings["llm.learn"]["group_size"] = 2
        choices = {"env": "fishery", "agent": agent, "principal": principal, **choices}
        outcome, _ = self._run_cached(choices, settings)
        if outcome.status == OMITTED and outcome.message.startswith("design.candidates"):
            outcome, _ = self._run_cached(choices, {**settings, "design.candidates": 1})
        return outcome

    def _test_model(self, agent: str, llm: str) -> Outcome:
        """Test a language model with an agent; without a key or a server, the parts are only built."""
        choices = {"env": self._find_env(agent), "agent": agent}
        if not groups_using_model(
            {**_compose_base_config(choices["env"]), "agent": _load_composed_option("agent", agent)}
        ):
            outcome, _ = self._run_cached(choices)
            return replace(outcome, status=NO_MODEL) if outcome.works else outcome
        return self._run_cached({**choices, "llm": llm})[0]

    def _find_env(self, agent: str) -> str:
        """Return the first environment that supports an agent."""
        agent_envs = [env for env in list_options("env") if agent.startswith(env)]  # cleanup_society
        envs = list(dict.fromkeys([*agent_envs, *PREFERRED_ENVS, *list_options("env")]))
        return next((env for env in envs if self.test_pair("env-agent", env, agent).works), envs[0])

    def _find_teacher_env(self, agent: str) -> str:
        return next((env for env in TEACHER_ENVS if self.test_pair("env-agent", env, agent).works), TEACHER_ENVS[0])

    def _run_cached(self, choices: Choices, settings: Settings | None = None) -> tuple[Outcome, Path | None]:
        """Return the outcome of an experiment and its run folder, from the cache if it was run before."""
        key = json.dumps([choices, settings], sort_keys=True)
        if key not in self.cache:
            try:
                self.cache[key] = self._run(choices, settings or {})
            except Incompatible as error:
                self.cache[key] = Outcome(error.reason.value, str(error)), None
            except LlmrlError as error:
                self.cache[key] = Outcome(OMITTED, str(error)), None
        return self.cache[key]

    def _run(self, choices: Choices, settings: Settings) -> tuple[Outcome, Path | None]:
        config, overrides = self._make_config(choices, settings)
        choice_overrides = [f"{group}={name}" for group, name in choices.items()]
        experiment = Experiment.compose(*overrides) if self.use_hydra else Experiment(config, choice_overrides)
        if "api_key_env" in config["llm"] and groups_using_model(config):
            experiment.plan()
            return Outcome(BUILDS), None
        return Outcome(RUNS), experiment.run().folder

    def _make_config(
        self, choices: Choices, extra_settings: Settings | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the config of an experiment with minimal sizes, and the overrides that compose it."""
        chosen = dict(choices)
        agent, builder = _load_composed_option("agent", chosen["agent"]), Builder()
        if chosen["agent"] == "teacher":
            chosen.setdefault("teacher", "oracle")
        if get_declared_loop(agent, builder) == "search":
            chosen.setdefault("principal", "random")
        chosen.setdefault("llm", "small_scorer" if builder.needs(agent, "scorer", "agent") else "scripted")
        config = copy.deepcopy(_compose_base_config(chosen["env"]))
        config |= {
            group: copy.deepcopy(_load_composed_option(group, name)) for group, name in chosen.items() if group != "env"
        }
        settings: Settings = {**SMALL, **self._make_required_settings(chosen, config), **(extra_settings or {})}
        settings |= {"output_root": str(self.folder), "name": "matrix"}
        overrides = [f"{group}={name}" for group, name in chosen.items()]
        overrides += [*_get_required_overrides("env", chosen["env"]), "loggers=[]"]
        if "llm.learn" in settings:
            overrides.append("llm/learn=grpo")  # keys can be overridden only if a method is selected
        overrides += [f"{key}={_format_value(value)}" for key, value in settings.items() if _set(config, key, value)]
        return {**config, "loggers": {}}, overrides

    def _make_required_settings(self, chosen: Choices, config: dict[str, Any]) -> Settings:
        """Return the settings without which the selected parts cannot work together."""
        required: Settings = {}
        env, agent, llm = chosen["env"], config["agent"], config["llm"]
        if "substrate" in config["env"]:
            required["env.engine"] = "native"  # needs no other packages or processes
        if "role" in agent and config["env"].get("observe") == ["pixels"]:
            required["env.observe"] = ["pixels", "grid"]
        if channel := _find_text_channel(env):
            required |= dict.fromkeys(("agent.text_channel", "agent.student.text_channel", "llm.make.channel"), channel)
        if "members" in agent:
            n_others = build_spec(env).n_agents - 1
            members = [{"count": 1, "agent": "ppo"}, {"count": n_others, "agent": "random"}]
            required["agent.members"] = members[: n_others + 1]
        channels = build_spec(env).observation
        if "bins" in agent and "state" not in channels and "vector" in channels:
            n_numbers = channels["vector"].shape[0]
            required["agent.bins"] = [[-1, 1, 2 if i < BINNED_NUMBERS else 1] for i in range(n_numbers)]
        has_grids = any(len(channel.shape) == 3 for channel in channels.values())
        if has_grids and agent.get("critic", "own") != "own":
            required["agent.core"] = "mlp"
        if agent.get("init_from") is not None:
            # Raises if the society belongs to another environment; its training, which takes hours, is skipped.
            Experiment({**config, "output_root": str(self.folder), "name": "matrix"})
            required["agent.init_from"] = None
        if "data" in agent and (data := self._record_trajectories(env)):
            required["agent.data"] = data
        if chosen.get("principal", "none") != "none" and "tax" in config["env"]:
            required["env.tax"] = True
        if chosen.get("principal") == "metagrad" and "welfare" in config["env"]:
            required["env.welfare"] = "utilitarian"
        if chosen.get("principal") == "listed":
            required["principal.vectors"] = self._get_corner_vectors(chosen)
        is_loaded = llm.get("make") is None
        if is_loaded and ("make" in llm or "chat_template" in llm):
            required |= {"llm.model": str(self._make_model(llm["_target_"])), "llm.max_tokens": 4}
        if is_loaded and "chat_template" in llm:
            required["llm.chat_template"] = str(self._make_model("") / "chat.jinja")
        if "calls" in llm:
            required["llm.calls"] = str(self._run_cached({**chosen, "llm": "scripted"})[1])
        return required

    def _record_trajectories(self, env: str) -> str | None:
        """Return the folder of a run with recorded trajectories for imitation learning, or None if no agent runs."""
        player = "llm_player" if _find_text_channel(env) == "text" else "random"
        _, folder = self._run_cached({"env": env, "agent": player}, {"play.trajectories": True})
        return None if folder is None else str(folder)

    def _get_corner_vectors(self, chosen: Choices) -> list[list[float]] | None:
        """Return the lower and upper bounds of proposals; None if the experiment has no proposals."""
        # Agents that are language models cannot be built without a model.
        agent = {"agent": "ppo"} if build_spec(chosen["env"]).mechanism is not None else {}
        config, _ = self._make_config({**chosen, **agent, "principal": "random"})
        try:
            experiment_parts = build_parts(config, None)
        except ConfigError:
            return None
        experiment_parts.close()
        assert experiment_parts.principal is not None
        space = experiment_parts.principal.space
        return [space.low.tolist(), space.high.tolist()]

    def _make_model(self, target: str) -> Path:
        """Return the folder of a small language model with the architecture that a class loads."""
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


def _get_required_overrides(group: str, name: str) -> list[str]:
    """Return the overrides that an option requires."""
    overrides = {
        "env=gymnasium": ["env.id=CartPole-v1", "env.text=auto"],
        "env=openspiel": ["env.id=kuhn_poker"],
        "env=pettingzoo": ["env.id=pettingzoo.classic.rps_v2"],
        "env=textarena": ["env.id=TicTacToe-v0"],
        "llm=replay": ["llm.calls=?"],
    }
    return overrides.get(f"{group}={name}", [])


def _load_composed_option(group: str, name: str) -> Any:
    """Return the composed config of an option, independent of the environment."""
    return compose_plain("train", "env=nim", f"{group}={name}", *_get_required_overrides(group, name))[group]


def _compose_base_config(env: str) -> dict[str, Any]:
    return compose_plain("train", f"env={env}", "agent=random", *_get_required_overrides("env", env))


@functools.cache
def build_spec(env: str, use_text: bool = False) -> EnvSpec:
    """Build a small environment, and return its spec.

    Args:
        env: option of `env`.
        use_text: whether observations include the channel `text`.

    Raises:
        ConfigError: the environment has no text observations.
    """
    config = copy.deepcopy(_compose_base_config(env))
    for key, value in SMALL.items():
        _set(config, key, value)
    if "substrate" in config["env"]:
        config["env"]["engine"] = "native"
    if use_text:
        config["env"]["observe"] = [*config["env"]["observe"], "text"]
    environment = build_env(config["env"], Builder(EnvServices(Seeds(0))))
    environment.close()
    return environment.spec


def _find_text_channel(env: str) -> str | None:
    """Return the name of the text channel of an environment, or None if there is none."""
    channels = build_spec(env).observation
    if (channel := next((name for name in ("prompt", "text") if name in channels), None)) is not None:
        return channel
    if "observe" not in _compose_base_config(env)["env"]:
        return None
    try:
        build_spec(env, use_text=True)
    except ConfigError:
        return None
    return "text"


def _set(config: dict[str, Any], key: str, value: Any) -> bool:
    """Set the value of a dotted key if the config has it, and return whether it has it."""
    *path, last = key.split(".")
    node: Any = config
    for part in path:
        node = node.get(part) if isinstance(node, Mapping) else None
    if not isinstance(node, dict) or last not in node:
        return False
    node[last] = value
    return True


def _format_value(value: Any) -> str:
    """Format a value in the override grammar of Hydra."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case Mapping():
            return "{" + ", ".join(f"{key}: {_format_value(child)}" for key, child in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_format_value, value)) + "]"
        case str():
            return f"'{value}'"
    return str(value)
