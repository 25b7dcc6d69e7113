"""What a config leaves to be worked out about who plays: the options of a mixed society's members, and the words that
players who read need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmrl.config.builder import Builder
from llmrl.core import option_files
from llmrl.core.arguments import checked, type_hints_of
from llmrl.core.errors import ConfigError

Config = Mapping[str, Any]

_OF_A_MEMBER = ("count", "slots", "agent", "llm", "name")
"""Keys of a member beside the options of its agent."""
_MEMBER = "llmrl.agents.mixed.mixed_agent.Member"
_MIXED = "llmrl.agents.mixed.mixed_agent.MixedAgent"
_BEGINS = ("init_from", "init_from_seed")
_TEXT = "text"


def parts_of(agent: Config) -> Iterator[Mapping[str, Any]]:
    """Yield the options of each agent of a config's `agent`: itself, or those of a mixed society's members."""
    if agent.get("_target_") != _MIXED:
        yield agent
        return
    for member in agent.get("members") or ():
        if isinstance(member, Mapping) and isinstance(member.get("agent"), Mapping):
            yield member["agent"]


def with_parts(agent: Config, change: Any) -> dict[str, Any]:
    """Return a config's `agent` with `change` applied to the options of each of its agents."""
    if agent.get("_target_") != _MIXED:
        return dict(change(agent))
    members = [{**member, "agent": dict(change(member["agent"]))} for member in agent["members"]]
    return {**agent, "members": members}


def with_members(config: Config) -> dict[str, Any]:
    """Return a resolved config with the full options of each member of `agent=mixed`. Applying this twice changes
    nothing more.

    A member is {count: 5, agent: ppo}, with options of that agent beside these, and `llm`, an option of llm=, for one
    that asks a language model. The run that a member's weights come from (`init_from`) becomes that of the society.

    Raises:
        ConfigError: a member is no such mapping, an unknown option, or several runs that weights come from.
    """
    agent = config.get("agent") or {}
    if agent.get("_target_") != _MIXED:
        return dict(config)
    members = agent.get("members")
    if not isinstance(members, list | tuple) or not members:
        raise ConfigError(
            "agent.members is a list of who plays, e.g. agent.members='[{count: 5, agent: ppo}, {count: 2, agent: "
            f"llm_player}}]'; got {members!r}"
        )
    made: dict[str, Any] = dict(agent)
    whole = [_member(i, member, made) for i, member in enumerate(members)]
    return {**config, "agent": {**made, "members": whole}}


def _member(index: int, member: Any, society: dict[str, Any]) -> dict[str, Any]:
    """Return a member with the full options of its agent; a run to begin from is moved to `society`."""
    where = f"agent.members[{index}]"
    known = option_files.names("agent")
    if not isinstance(member, Mapping):
        raise ConfigError(f"{where}={member!r}: a mapping is needed, e.g. {{count: 2, agent: llm_player}}")
    if member.get("_target_") == _MEMBER:
        return dict(member)
    chosen = member.get("agent")
    if chosen not in known or chosen == "mixed":
        works = ", ".join(name for name in known if name != "mixed")
        raise ConfigError(f"{where}.agent={chosen}: choose one of {works}")
    node = option_files.option("agent", chosen)
    option_files.merge(node, {key: value for key, value in member.items() if key not in _OF_A_MEMBER})
    if member.get("llm") is not None:
        if "players" not in node:
            raise ConfigError(f"{where}.llm={member['llm']}: agent={chosen} asks no language model that chats")
        count = member.get("count") or len(member.get("slots") or ())
        node["players"] = {str(member["llm"]): count}
    begins = node.get("init_from") is not None
    if begins:
        if society.get("init_from") not in (None, node["init_from"]):
            raise ConfigError(f"{where}.init_from={node['init_from']}: all members begin with the same run's weights")
        society |= {key: node[key] for key in _BEGINS if key in node}
        node["init_from"] = None
    return {
        "_target_": _MEMBER,
        "name": str(member.get("name") or chosen),
        "count": member.get("count"),
        "slots": member.get("slots"),
        "begins": begins,
        "agent": node,
    }


def with_texts(config: Config) -> dict[str, Any]:
    """Return a resolved config whose environment tells players in words what they see, if one of them reads and the
    environment offers a choice of what is observed (`env.observe`). Applying this twice changes nothing more."""
    env = config.get("env") or {}
    if "observe" not in env or not reads(config) or _TEXT in (env["observe"] or ()) or not _tells(config):
        return dict(config)
    return {**config, "env": {**env, "observe": [*(env["observe"] or ()), _TEXT]}}


def _tells(config: Config) -> bool:
    """Return whether `text` is among what players of the config's environment can observe; if not, its agent says so
    better than the environment would."""
    env = config["env"]
    hint = type_hints_of(Builder(trusted=config["trusted_modules"]).locate(env["_target_"], "env")).get("observe")
    try:
        checked([_TEXT], hint, "env.observe")
    except ConfigError:
        return False
    return True


def reads(config: Config) -> bool:
    """Return whether a player of a config reads texts."""
    builder = Builder(trusted=config["trusted_modules"])
    return any(
        getattr(builder.locate(part["_target_"], "agent"), "reads_texts", False)
        for part in parts_of(config["agent"])
        if part.get("_target_")
    )
