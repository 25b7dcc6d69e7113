"""Completion of a resolved config before its hash is computed.

Members of a mixed society get their full options, and environments provide texts for agents that read texts. Sections
that the run does not read are removed, so that its hash does not depend on options of other loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llmrl.config.builder import Builder, Config
from llmrl.config.loop_sections import LOOP_CLASSES, agent_learns, get_loop_kind, get_section
from llmrl.core import option_files
from llmrl.core.arguments import get_signature, validate_argument
from llmrl.core.errors import ConfigError

MODEL_GROUPS = ("principal", "agent", "teacher")
"""Config groups whose parts may use a language model and have prompts."""
OBJECTIVE_KEYS = ("objective", "spending_cost")
"""Keys of `design` that runs of all loops read, because they define the objective by which agents are evaluated."""
_MEMBER_KEYS = ("count", "slots", "agent", "llm", "name")
"""Keys of a member of `agent=mixed` that are not options of its agent."""
_MEMBER_TARGET = "llmrl.agents.mixed.mixed_agent.Member"
_MIXED_TARGET = "llmrl.agents.mixed.mixed_agent.MixedAgent"
_INITIAL_WEIGHTS_KEYS = ("init_from", "init_from_seed")
_TEXT_CHANNEL = "text"


def iterate_agent_nodes(agent: Config) -> Iterator[Mapping[str, Any]]:
    """Yield the options of each agent of a config's node `agent`: the node itself, or the agents of its members."""
    if agent.get("_target_") != _MIXED_TARGET:
        yield agent
        return
    for member in agent.get("members") or ():
        if isinstance(member, Mapping) and isinstance(member.get("agent"), Mapping):
            yield member["agent"]


def map_agents(agent: Config, change: Callable[[Config], Config]) -> dict[str, Any]:
    """Return a config's node `agent` with `change` applied to the options of each agent (`iterate_agent_nodes`)."""
    if agent.get("_target_") != _MIXED_TARGET:
        return dict(change(agent))
    return {**agent, "members": [{**member, "agent": dict(change(member["agent"]))} for member in agent["members"]]}


def with_full_members(config: Config) -> dict[str, Any]:
    """Return a resolved config with the full options of each member of `agent=mixed`.

    Users write a member as a mapping such as {count: 5, agent: ppo}, which may contain options of that agent and `llm`,
    the name of an option of llm=. `init_from` of a member becomes that of the society. A second application changes
    nothing.

    Raises:
        ConfigError: a member is not such a mapping, an option is unknown, or members have different `init_from`.
    """
    agent = config.get("agent") or {}
    if agent.get("_target_") != _MIXED_TARGET:
        return dict(config)
    members = agent.get("members")
    if not isinstance(members, list | tuple) or not members:
        raise ConfigError(
            "agent.members must be a list of kinds of agents, e.g. agent.members='[{count: 5, agent: ppo}, {count: 2, "
            f"agent: llm_player}}]'; got {members!r}"
        )
    agent_options: dict[str, Any] = dict(agent)
    full_members = [_complete_member(i, member, agent_options) for i, member in enumerate(members)]
    return {**config, "agent": {**agent_options, "members": full_members}}


def _complete_member(index: int, member: Any, society: dict[str, Any]) -> dict[str, Any]:
    """Return a member with the full options of its agent; `init_from` is moved from the member to `society`."""
    path = f"agent.members[{index}]"
    agent_names = option_files.list_option_names("agent")
    if not isinstance(member, Mapping):
        raise ConfigError(f"{path}={member!r} must be a mapping, e.g. {{count: 2, agent: llm_player}}")
    if member.get("_target_") == _MEMBER_TARGET:
        return dict(member)
    agent_name = member.get("agent")
    if agent_name not in agent_names or agent_name == "mixed":
        choices = ", ".join(name for name in agent_names if name != "mixed")
        raise ConfigError(f"{path}.agent={agent_name} must be one of {choices}")
    node = option_files.load_option("agent", agent_name)
    option_files.override_fields(node, {key: value for key, value in member.items() if key not in _MEMBER_KEYS})
    if member.get("llm") is not None:
        if "players" not in node:
            raise ConfigError(
                f"{path}.llm={member['llm']}: agent={agent_name} uses no chat model; remove this key, or choose an "
                "agent such as llm_player"
            )
        node["players"] = {str(member["llm"]): member.get("count") or len(member.get("slots") or ())}
    has_initial_weights = node.get("init_from") is not None
    if has_initial_weights:
        if society.get("init_from") not in (None, node["init_from"]):
            raise ConfigError(
                f"{path}.init_from={node['init_from']} must be {society['init_from']}, because all members take "
                "initial weights from the same run"
            )
        society_sets_seed = society.get("init_from_seed", "own") != "own"  # it overrides the seeds of members
        society |= {key: node[key] for key in _INITIAL_WEIGHTS_KEYS[: 1 if society_sets_seed else 2] if key in node}
        node["init_from"] = None
    return {
        "_target_": _MEMBER_TARGET,
        "name": str(member.get("name") or agent_name),
        "count": member.get("count"),
        "slots": member.get("slots"),
        "begins": has_initial_weights,
        "agent": node,
    }


def with_text_channel(config: Config) -> dict[str, Any]:
    """Return a resolved config whose environment provides texts if an agent reads them.

    The channel `text` is added to `env.observe`, if the environment has this option and this channel. A second
    application changes nothing.
    """
    env = config.get("env") or {}
    channels = env.get("observe", ...) or ()
    # A value of the wrong type raises an error when the environment is built.
    if not isinstance(channels, list | tuple) or _TEXT_CHANNEL in channels or not has_text_reader(config):
        return dict(config)
    hint = get_signature(Builder(trusted=config["trusted_modules"]).locate(env["_target_"], "env")).hints.get("observe")
    try:
        validate_argument([_TEXT_CHANNEL], hint, "env.observe")
    except ConfigError:  # the environment has no texts
        return dict(config)
    return {**config, "env": {**env, "observe": [*channels, _TEXT_CHANNEL]}}


def has_text_reader(config: Config) -> bool:
    """Return whether an agent of a config reads texts (class attribute `reads_texts`)."""
    builder = Builder(trusted=config["trusted_modules"])
    return any(
        getattr(builder.locate(node["_target_"], "agent"), "reads_texts", False)
        for node in iterate_agent_nodes(config["agent"])
        if node.get("_target_")
    )


def without_unread_sections(config: Config) -> dict[str, Any]:
    """Return a resolved config without the sections that its run does not read.

    These are the sections of other loops, `llm` if no part uses a model, and `prompts` if no part has prompts. The keys
    `OBJECTIVE_KEYS` of `design` are never removed. A second application changes nothing.

    Args:
        config: resolved config of `llmrl-train`, plain data.

    Raises:
        ConfigError: a part cannot be found, or parts cannot work together.
    """
    builder = Builder(trusted=config["trusted_modules"])
    kind = get_loop_kind(config, builder)
    learns = agent_learns(config, builder) if kind == "learn" else True
    # None: the agent determines in its constructor whether it learns, so both sections may be read.
    read_sections = {"learn", "play"} if learns is None else {get_section(kind) if learns else "play"}
    unread_sections = {get_section(loop) for loop in LOOP_CLASSES} - read_sections - {"design"}
    if not groups_using_model(config, builder=builder):
        unread_sections.add("llm")
    if not groups_with_parameter(config, "prompt_folder", builder):
        unread_sections.add("prompts")
    run_config = {key: value for key, value in config.items() if key not in unread_sections}
    if "design" not in read_sections:
        run_config["design"] = {key: value for key, value in config["design"].items() if key in OBJECTIVE_KEYS}
    return run_config


def groups_using_model(
    config: Config, groups: Sequence[str] = MODEL_GROUPS, builder: Builder | None = None
) -> list[str]:
    """Return those of the `groups` whose chosen part uses the language model of `llm=`."""
    builder = builder or Builder(trusted=config["trusted_modules"])
    return [group for group in groups if any(builder.needs(config[group], name, group) for name in ("llm", "scorer"))]


def groups_with_parameter(config: Config, parameter: str, builder: Builder) -> list[str]:
    """Return the groups of `MODEL_GROUPS` whose chosen part has a constructor parameter named `parameter`."""
    return [group for group in MODEL_GROUPS if builder.needs(config[group], parameter, group)]
