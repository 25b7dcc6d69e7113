"""Completion of a config: options of a mixed society's members, and texts for agents that read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmrl.config.builder import Builder
from llmrl.core import option_files
from llmrl.core.arguments import checked, signature_of
from llmrl.core.errors import ConfigError

Config = Mapping[str, Any]

_MEMBER_KEYS = ("count", "slots", "agent", "llm", "name")
"""Keys of a member other than the options of its agent."""
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
    """Return a resolved config with the full options of each member of `agent=mixed`.

    A second application changes nothing.

    A member is {count: 5, agent: ppo}, with further options of that agent, and `llm`, an option of llm=, if it uses a
    language model. The run of a member's initial weights (`init_from`) becomes that of the society.

    Raises:
        ConfigError: a member is not such a mapping, an option is unknown, or members have different `init_from`.
    """
    agent = config.get("agent") or {}
    if agent.get("_target_") != _MIXED:
        return dict(config)
    members = agent.get("members")
    if not isinstance(members, list | tuple) or not members:
        raise ConfigError(
            "agent.members must be a list of kinds of agents, e.g. agent.members='[{count: 5, agent: ppo}, {count: 2, "
            f"agent: llm_player}}]'; got {members!r}"
        )
    agent_options: dict[str, Any] = dict(agent)
    full_members = [_member(i, member, agent_options) for i, member in enumerate(members)]
    return {**config, "agent": {**agent_options, "members": full_members}}


def _member(index: int, member: Any, society: dict[str, Any]) -> dict[str, Any]:
    """Return a member with the full options of its agent; the run of its initial weights is moved to `society`."""
    path = f"agent.members[{index}]"
    agent_names = option_files.names("agent")
    if not isinstance(member, Mapping):
        raise ConfigError(f"{path}={member!r} must be a mapping, e.g. {{count: 2, agent: llm_player}}")
    if member.get("_target_") == _MEMBER:
        return dict(member)
    agent_name = member.get("agent")
    if agent_name not in agent_names or agent_name == "mixed":
        works = ", ".join(name for name in agent_names if name != "mixed")
        raise ConfigError(f"{path}.agent={agent_name} must be one of {works}")
    node = option_files.option("agent", agent_name)
    option_files.merge(node, {key: value for key, value in member.items() if key not in _MEMBER_KEYS})
    if member.get("llm") is not None:
        if "players" not in node:
            raise ConfigError(
                f"{path}.llm={member['llm']}: agent={agent_name} uses no chat model; remove this key, or choose an "
                "agent such as llm_player"
            )
        count = member.get("count") or len(member.get("slots") or ())
        node["players"] = {str(member["llm"]): count}
    begins = node.get("init_from") is not None
    if begins:
        if society.get("init_from") not in (None, node["init_from"]):
            raise ConfigError(
                f"{path}.init_from={node['init_from']} must be {society['init_from']}, because all members take "
                "initial weights from the same run"
            )
        society |= {key: node[key] for key in _BEGINS if key in node}
        node["init_from"] = None
    return {
        "_target_": _MEMBER,
        "name": str(member.get("name") or agent_name),
        "count": member.get("count"),
        "slots": member.get("slots"),
        "begins": begins,
        "agent": node,
    }


def with_texts(config: Config) -> dict[str, Any]:
    """Return a resolved config whose environment provides texts if an agent reads them.

    It does so if the environment offers a choice of what is observed (`env.observe`). Applying this twice changes
    nothing more.
    """
    env = config.get("env") or {}
    if "observe" not in env or not reads(config) or _TEXT in (env["observe"] or ()) or not _tells(config):
        return dict(config)
    return {**config, "env": {**env, "observe": [*(env["observe"] or ()), _TEXT]}}


def _tells(config: Config) -> bool:
    """Return whether `text` is among the channels that players of the config's environment can observe."""
    env = config["env"]
    hint = signature_of(Builder(trusted=config["trusted_modules"]).locate(env["_target_"], "env")).hints.get("observe")
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
