"""The language model of an experiment: which parts use one, of which kind, and the client around it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.config.builder import Builder
from llmrl.config.destinations import with_approvals
from llmrl.core import option_files
from llmrl.core.arguments import checked
from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.model_protocols import Scorer
from llmrl.core.option_files import options
from llmrl.core.records import CHOSEN
from llmrl.core.seeding import Seeds
from llmrl.experiment.members import parts_of, with_parts
from llmrl.experiment.resources import Model, RunResources
from llmrl.llms.client import ChatClient
from llmrl.llms.provider import Provider
from llmrl.llms.rate_limit import RateLimit

Config = Mapping[str, Any]

POLICIES = (
    "cache",
    "cache_dir",
    "cache_across_seeds",
    "failures",
    "retry",
    "limits",
    "budget",
    "max_invalid",
    "others",
)
"""Keys of the config's `llm` that say how a model is called; the other keys say which model it is."""
ASKING = ("principal", "agent", "teacher")
"""Config groups whose parts may use a model."""


def build_llm(
    config: Config, folder: Path | None, check: bool = True, stopping: Callable[[], bool] = lambda: False
) -> Model:
    """Build the language model of a config, with its calls logged into `folder`; return None if no part uses one.

    Args:
        config: resolved config in plain containers.
        folder: run folder; None: calls are not logged.
        check: whether to check now that the model can answer.
        stopping: function that returns whether the run is to stop, so that it does not wait for an outage to end.

    Raises:
        ConfigError: a part needs a model, and none or one of the wrong kind was chosen.
        LLMError: the model cannot answer (missing key, server down).
    """
    means = RunResources(config, model_asked)
    if folder is not None and isinstance(means.model, ChatClient):
        means.model.join_run(folder, stopping)
    if check and means.model is not None:
        means.model.check()
    return means.model


def model_asked(resources: RunResources) -> Model:
    """Build the language model that the parts of a config use, without checking it; return None if no part uses one.

    A part with a parameter `llm` uses a chat model; one with a parameter `scorer` uses a model that scores texts.

    Raises:
        ConfigError: a part needs a model, and none or one of the wrong kind was chosen; or parts need both kinds.
    """
    config = resources.config
    builder = Builder(trusted=config["trusted_modules"])
    users = {kind: _users(config, kind, builder) for kind in ("llm", "scorer")}
    if users["llm"] and users["scorer"]:
        raise Incompatible(
            Misfit.MODEL,
            f"{users['llm'][0]} asks for a chat model and {users['scorer'][0]} for one that scores texts, and llm= "
            "chooses one model; change one of the two parts",
        )
    kind = "llm" if users["llm"] else "scorer"
    if not users[kind]:
        return None
    _check_kind(config["llm"], kind, users[kind][0], builder)
    return build_model(resources)


def asking(config: Config, groups: Sequence[str] = ASKING) -> list[str]:
    """Return the `groups` whose chosen part uses the model of `llm=`."""
    builder = Builder(trusted=config["trusted_modules"])
    found = {group for kind in ("llm", "scorer") for group in _users(config, kind, builder)}
    return [group for group in groups if group in found]


def build_model(resources: RunResources, llm: Config | None = None) -> Model:
    """Build the model of the config's `llm`, or of the node `llm`, whether or not a part uses it, without checking it.

    Raises:
        ConfigError: an option is unknown, missing, mistyped or out of range, or a key would be sent to a host that the
            user has not approved.
    """
    config = resources.config
    trusted, chosen = config["trusted_modules"], config["llm"] if llm is None else llm
    with_approvals({"llm": chosen, "trusted_modules": trusted})
    node = _model(chosen)
    injected: dict[str, Any] = {"seeds": Seeds(config["seed"]).child("llm")}
    if Builder(trusted=trusted).needs(node, "device", "llm"):
        injected["device"] = resources.device
    if node.get("make") is not None:
        from llmrl.experiment.small_models import SmallModels

        injected["workshop"] = SmallModels(config)
    model: Provider | Model = Builder(injected, trusted).build(node, "llm")
    if isinstance(model, Provider):
        # A model that is trained has no `max_invalid`: invalid replies are expected until it has learned.
        policies = {name: value for name, value in chosen.items() if name in POLICIES and name != "others"}
        connect = {"_target_": "llmrl.llms.client.connect", **policies}
        own = {"provider": model, "seed": config["seed"], "others": _others(resources, chosen, model)}
        model = Builder(own, trusted).build(connect, "llm")
    assert model is None or isinstance(model, ChatClient | Scorer)
    return model


def _others(resources: RunResources, chosen: Config, model: Provider) -> dict[str, tuple[Provider, RateLimit]]:
    """Build the further models of players, by name, each with its rate limit."""
    config = with_others({**resources.config, "llm": chosen})
    trusted = config["trusted_modules"]
    found = {}
    for name, node in (config["llm"].get("others") or {}).items():
        key = f"llm.others.{name}"
        own = _model(node)
        injected: dict[str, Any] = {"seeds": Seeds(config["seed"]).child(f"llm/{name}")}
        if Builder(trusted=trusted).needs(own, "device", key):
            injected["device"] = resources.device
        make = functools.partial(Builder(injected, trusted).build, own, key)
        limits = {**chosen["limits"], **(node.get("limits") or {})}
        found[name] = (model.beside(name, make), Builder(trusted=trusted).build(limits, f"{key}.limits"))
    return found


def with_others(config: Config) -> dict[str, Any]:
    """Return a resolved config with the full options of all models in `agent.players`, changed by what is set under
    `llm.others`. Applying this twice changes nothing more.

    If no player is the chosen model and only players use one, the first option equal to it is renamed to `llm`.

    Raises:
        ConfigError: an unknown option of llm=, one that does not chat or lacks a value, a setting for a model that no
            player uses, or a chosen model that nothing uses.
    """
    llm, agent = config.get("llm"), config.get("agent") or {}
    if not isinstance(llm, Mapping):
        return dict(config)
    given = checked(llm.get("others"), dict[str, dict[str, Any]] | None, "llm.others") or {}
    readers = [part for part in parts_of(agent) if "players" in part]
    if not any(part["players"] for part in readers) and not given:
        return dict(config)
    named = [str(name) for name in dict.fromkeys(name for part in readers for name in part["players"] or [CHOSEN])]
    if unused := [name for name in given if name not in named]:
        raise ConfigError(
            f"llm.others.{unused[0]} is the model of no player: agent.players names {', '.join(named)} alone"
        )
    builder = Builder(trusted=config["trusted_modules"])
    others = {name: _option(name, given.get(name) or {}, builder) for name in named if name != CHOSEN}
    if CHOSEN not in named and _users(config, "llm", builder) == ["agent"]:
        same = next((name for name in named if _model(others[name]) == _model(llm)), None)
        if same is None:
            raise ConfigError(
                f"agent.players names {', '.join(named)}, and so nobody asks the model that llm= chooses: set "
                f"llm={named[0]}, or write {CHOSEN} for one of them"
            )
        del others[same]
        agent = with_parts(agent, functools.partial(_renamed, name=same))
    return {**config, "agent": agent, "llm": {**llm, "others": others}}


def _renamed(part: Config, name: str) -> Config:
    """Return the options of an agent whose players `name` are called the chosen model."""
    players = part.get("players")
    if not players:
        return part
    if isinstance(players, Mapping):
        return {**part, "players": {CHOSEN if each == name else each: n for each, n in players.items()}}
    return {**part, "players": [CHOSEN if each == name else each for each in players]}


def _model(node: Config) -> dict[str, Any]:
    """Return the keys of an option of llm= that say which model it is."""
    return {what: value for what, value in node.items() if what not in POLICIES}


def _option(name: str, given: Config, builder: Builder) -> dict[str, Any]:
    """Return the option `name` of llm=, merged with `given`, without the policies that all models of a run share."""
    where, known = f"llm.others.{name}", option_files.names("llm")
    if name not in known and "_target_" not in given:
        raise ConfigError(
            f"agent.players: there is no llm={name}; there are {CHOSEN} (the chosen one), {', '.join(known)}, and "
            f"what {where} describes, whole"
        )
    if common := [what for what in given if what in POLICIES and what != "limits"]:
        raise ConfigError(f"{where}.{common[0]}: all models of a run have one; set llm.{common[0]}")
    files = [option_files.content(path) for path, _ in option_files.chain("llm", name)] if name in known else []
    settled = {what: value for content in (*files, given) for what, value in content.items()}
    if missing := [what for what, value in settled.items() if value == "???"]:
        raise ConfigError(f"agent.players: llm={name} needs {missing[0]}; set +{where}.{missing[0]}=...")
    node = option_files.option("llm", name) if name in known else {}
    option_files.merge(node, given)
    _check_kind(node, "llm", f"player ({name})", builder)
    return {what: value for what, value in node.items() if what == "limits" or what not in POLICIES}


def _users(config: Config, kind: str, builder: Builder) -> list[str]:
    """Return the groups whose chosen part has a parameter `kind`."""
    return [group for group in ASKING if builder.needs(config[group], kind, group)]


def _check_kind(node: Config, kind: str, user: str, builder: Builder) -> None:
    """Raise ConfigError unless the option `node` of llm= is of the kind that `user` needs; nothing is built."""

    def fits(option: Config, builder: Builder) -> bool:
        if option.get("_target_") is None:
            return False
        target = builder.locate(option["_target_"], "llm")
        return issubclass(target, Provider) if kind == "llm" else hasattr(target, "score")

    if fits(node, builder):
        return
    works = ", ".join(name for name, option in options("llm").items() if fits(option, Builder()))
    chosen = node.get("_target_")
    if chosen is None:
        raise Incompatible(Misfit.ABSENT, f"the chosen {user} needs a language model; choose one of llm={works}")
    wanted = "chats" if kind == "llm" else "scores texts with weights of its own"
    why = "only scores texts" if kind == "llm" else "gives replies and no log-probabilities"
    raise Incompatible(
        Misfit.MODEL,
        f"the chosen {user} needs a language model that {wanted}, and {chosen} {why}; use llm={works}",
    )
