"""Construction of the language model that the parts of an experiment use, and of its client."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmrl.config.builder import Builder, Config
from llmrl.config.permissions import check_permissions
from llmrl.core import option_files
from llmrl.core.arguments import validate_argument
from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.model_protocols import Scorer
from llmrl.core.records import CHOSEN_MODEL
from llmrl.core.seeding import Seeds
from llmrl.core.services import ModelServices
from llmrl.experiment.config_completion import groups_with_parameter, iterate_agent_nodes, map_agents
from llmrl.experiment.resources import CALL_POLICY_KEYS, Model, RunResources, model_options, split_llm_option
from llmrl.llms.client import ChatClient
from llmrl.llms.provider import Provider
from llmrl.llms.rate_limit import RateLimit


def build_llm(config: Config, folder: Path | None) -> Model:
    """Build and check the language model of a config, and log its calls in `folder`; None if no part uses one.

    Args:
        config: resolved config in plain containers.
        folder: run folder; None: calls are not logged.

    Raises:
        ConfigError: a part needs a model, and none or one of the wrong kind was chosen.
        LLMError: the model cannot answer (missing key, server down).
    """
    resources = RunResources(config, build_used_model)
    return resources.checked_model if folder is None else resources.join_run(folder, lambda: False)


def build_used_model(resources: RunResources) -> Model:
    """Build the language model that the parts of a config use, without checking it; return None if no part uses one.

    A part with a parameter `llm` uses a chat model; one with a parameter `scorer` uses a model that scores texts.

    Raises:
        ConfigError: a part needs a model, and none or one of the wrong kind was chosen, or parts need both kinds.
    """
    config, builder = resources.config, resources.builder
    groups = {service: groups_with_parameter(config, service, builder) for service in ("llm", "scorer")}
    if groups["llm"] and groups["scorer"]:
        raise Incompatible(
            IncompatibilityReason.MODEL,
            f"{groups['llm'][0]} needs a chat model and {groups['scorer'][0]} one that scores texts, but llm= chooses "
            "a single model; change one of the two parts",
        )
    service = "llm" if groups["llm"] else "scorer"
    if not groups[service]:
        return None
    _check_model_kind(config["llm"], service, groups[service][0], builder)
    return build_model(resources)


def build_model(resources: RunResources, llm: Config | None = None) -> Model:
    """Build the model of the node `llm`, even if no part uses it, without checking it; None if the node has no target.

    Raises:
        ConfigError: an option is unknown, missing, mistyped or out of range, or a key would be sent to a host that the
            user has not approved.
    """
    config = resources.config
    builder, llm_config = resources.builder, config["llm"] if llm is None else llm
    check_permissions({"llm": llm_config, "trusted_modules": config["trusted_modules"]})
    node, client_node = resources.model_nodes if llm is None else split_llm_option(llm)
    services = _build_model_services(resources, node, "llm")
    if node.get("make") is not None:
        from llmrl.experiment.small_models import SmallModels

        services = replace(services, model_factory=SmallModels(config))
    model: Provider | Model = builder.replace_services(services).build(node, "llm")
    if isinstance(model, Provider):
        client_services = {
            "provider": model,
            "seed": config["seed"],
            "additional_models": _build_player_models(resources, llm_config, model),
        }
        model = builder.replace_services(client_services).build(client_node, "llm")
    assert model is None or isinstance(model, ChatClient | Scorer)
    return model


def _build_model_services(resources: RunResources, node: Config, path: str, seed_path: str = "llm") -> ModelServices:
    """Return the services of the model `node`; only models with local weights get a torch device."""
    needs_device = resources.builder.needs(node, "device", path)
    return ModelServices(Seeds(resources.config["seed"]).child(seed_path), resources.device if needs_device else None)


def _build_player_models(
    resources: RunResources, llm_config: Config, model: Provider
) -> dict[str, tuple[Provider, RateLimit]]:
    """Build the models of players other than the chosen model, by name, each with its rate limit."""
    config = with_player_models({**resources.config, "llm": llm_config})
    models = {}
    for name, node in (config["llm"].get("variants") or {}).items():
        key = f"llm.variants.{name}"
        provider_options = model_options(node)
        services = _build_model_services(resources, provider_options, key, f"llm/{name}")
        build_provider = functools.partial(resources.builder.replace_services(services).build, provider_options, key)
        rate_limit = resources.builder.build({**llm_config["limits"], **(node.get("limits") or {})}, f"{key}.limits")
        models[name] = model.additional_provider(name, build_provider), rate_limit
    return models


def with_player_models(config: Config) -> dict[str, Any]:
    """Return a resolved config with the full options of each model in `agent.players`, in `llm.variants`.

    Settings of `llm.variants` override those of the option. If only players use models and none of them names the
    chosen model (`llm=`), the first model with the same options counts as the chosen one. A second application changes
    nothing.

    Raises:
        ConfigError: an option of llm= is unknown, is not a chat model or lacks a value; `llm.variants` has a model
            that no player uses; or no part uses the chosen model.
    """
    llm, agent = config.get("llm"), config.get("agent") or {}
    if not isinstance(llm, Mapping):
        return dict(config)
    player_options = validate_argument(llm.get("variants"), dict[str, dict[str, Any]] | None, "llm.variants") or {}
    nodes_with_players = [node for node in iterate_agent_nodes(agent) if "players" in node]
    if not any(node["players"] for node in nodes_with_players) and not player_options:
        return dict(config)
    names = dict.fromkeys(name for node in nodes_with_players for name in node["players"] or [CHOSEN_MODEL])
    model_names = [str(name) for name in names]
    if unused := [name for name in player_options if name not in model_names]:
        raise ConfigError(
            f"llm.variants.{unused[0]} is the model of no player; use one of agent.players: {', '.join(model_names)}"
        )
    builder = Builder(trusted=config["trusted_modules"])
    other_names = [name for name in model_names if name != CHOSEN_MODEL]
    nodes = {name: _load_player_model(name, player_options.get(name) or {}, builder) for name in other_names}
    if CHOSEN_MODEL not in model_names and groups_with_parameter(config, "llm", builder) == ["agent"]:
        duplicate = next((name for name in model_names if model_options(nodes[name]) == model_options(llm)), None)
        if duplicate is None:
            raise ConfigError(
                f"agent.players names {', '.join(model_names)}, so no part uses the model that llm= chooses; set "
                f"llm={model_names[0]}, or replace one of them by {CHOSEN_MODEL}"
            )
        del nodes[duplicate]
        agent = map_agents(agent, functools.partial(_rename_player, name=duplicate))
    return {**config, "agent": agent, "llm": {**llm, "variants": nodes}}


def _rename_player(agent: Config, name: str) -> Config:
    """Return the options of an agent with the chosen model instead of the model `name` in its players."""
    players = agent.get("players")
    if not players:
        return agent
    new_names = [CHOSEN_MODEL if player == name else player for player in players]
    if isinstance(players, Mapping):
        return {**agent, "players": dict(zip(new_names, players.values(), strict=True))}
    return {**agent, "players": new_names}


def _load_player_model(name: str, changes: Config, builder: Builder) -> dict[str, Any]:
    """Return the option `name` of llm=, merged with `changes`, without `CALL_POLICY_KEYS` other than `limits`."""
    option_key, names = f"llm.variants.{name}", option_files.list_option_names("llm")
    if name not in names and "_target_" not in changes:
        raise ConfigError(
            f"agent.players: there is no llm={name}; use {CHOSEN_MODEL} (the chosen model) or one of "
            f"{', '.join(names)}, or define all options of that model in {option_key}"
        )
    if shared_keys := [key for key in changes if key in CALL_POLICY_KEYS and key != "limits"]:
        key = shared_keys[0]
        raise ConfigError(f"{option_key}.{key} is common to all models of a run; set llm.{key} instead")
    # A merged option no longer shows which values are missing.
    files = [option_files.read_file(path) for path, _ in option_files.list_files("llm", name)] if name in names else []
    full_options = {key: value for content in (*files, changes) for key, value in content.items()}
    if missing := [key for key, value in full_options.items() if value == "???"]:
        raise ConfigError(f"agent.players: llm={name} needs {missing[0]}; set +{option_key}.{missing[0]}=<value>")
    node = option_files.load_option("llm", name) if name in names else {}
    option_files.override_fields(node, changes)
    _check_model_kind(node, "llm", f"player ({name})", builder)
    return {key: value for key, value in node.items() if key == "limits" or key not in CALL_POLICY_KEYS}


def _check_model_kind(node: Config, service: str, part_name: str, builder: Builder) -> None:
    """Raise ConfigError unless the option `node` of llm= is a model that the part `part_name` can use; build nothing.

    `service` is `llm` if the part needs a chat model, `scorer` if it needs a model that scores texts.
    """

    def is_suitable(option: Config, builder: Builder) -> bool:
        if option.get("_target_") is None:
            return False
        target = builder.locate(option["_target_"], "llm")
        return issubclass(target, Provider) if service == "llm" else hasattr(target, "score")

    if is_suitable(node, builder):
        return
    options = option_files.load_options("llm")
    names = ", ".join(name for name, option in options.items() if is_suitable(option, Builder()))
    target_path = node.get("_target_")
    if target_path is None:
        raise Incompatible(
            IncompatibilityReason.MISSING_PART,
            f"the chosen {part_name} needs a language model; choose one of llm={names}",
        )
    requirement = "chats" if service == "llm" else "scores texts with weights of its own"
    raise Incompatible(
        IncompatibilityReason.MODEL,
        f"the chosen {part_name} needs a language model that {requirement}, unlike {target_path}; use llm={names}",
    )
