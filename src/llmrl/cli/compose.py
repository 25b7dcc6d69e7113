"""The parts of an experiment, built from a resolved config, and the loop that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from llmrl.cli.build import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Agent, ChatModel, Loop, Meter, Proposer, Teacher, VecEnv
from llmrl.core.seeding import Seeds

Config = Mapping[str, Any]


@dataclass
class Parts:
    """What one experiment is made of; `llm` is None when no part asks for one."""

    env: VecEnv
    agent: Agent
    principal: Proposer | None
    teacher: Teacher | None
    llm: ChatModel | None
    device: str

    def close(self) -> None:
        self.env.close()


def options(group: str) -> dict[str, dict[str, Any]]:
    """Every option of a config group shipped with the package, as unresolved plain dicts.

    Options that also set a customary budget (`# @package _global_`) hold the part under the group's own key.
    """
    import yaml

    folder = resources.files("llmrl.conf") / group
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    contents: dict[str, dict[str, Any]] = {f.name.removesuffix(".yaml"): yaml.safe_load(f.read_text()) for f in files}
    return {name: content.get(group, content) for name, content in contents.items()}


def build_llm(config: Config, folder: Path | None) -> ChatModel | None:
    """The chat model, if a part asks for it, checked for a key or a server; logging its calls into `folder`.

    Raises:
        ConfigError: a part needs a model and none was chosen.
        LLMError: the model could never answer (missing key, server down).
    """
    from llmrl.llms.call_log import LoggedChat

    builder = Builder(trusted=config["trusted_modules"])
    users = [group for group in ("principal", "agent", "teacher") if builder.needs(config[group], "llm", group)]
    if not users:
        return None
    model: ChatModel | None = builder.build(config["llm"], "llm")
    if model is None:
        works = [name for name, option in options("llm").items() if option.get("_target_")]
        raise ConfigError(f"the chosen {users[0]} needs a language model; choose one of llm={', '.join(works)}")
    model.check()
    return model if folder is None else LoggedChat(model, folder / "llm_calls.jsonl")


def build_parts(config: Config, llm: ChatModel | None, render: bool | None = None, play_only: bool = False) -> Parts:
    """All parts of a resolved config; refuses combinations that cannot work before any game starts.

    Args:
        config: resolved, plain containers.
        llm: from `build_llm`.
        render: overrides `env.render` where the environment has that option.
        play_only: leave out the principal, whose language model might cost money; the agents stay as they were built.
    """
    seeds = Seeds(config["seed"])
    device = _device(config["hardware"])
    trusted = config["trusted_modules"]
    env_node = dict(config["env"])
    if render is not None and "render" in env_node:
        env_node["render"] = render
    env: VecEnv = Builder({"seeds": seeds.child("env")}, trusted).build(env_node, "env")
    try:
        governed = config["principal"].get("_target_") is not None
        offered = {"spec": env.spec, "device": device, "llm": llm, "governed": governed}
        if governed and env.spec.mechanism is None:
            raise ConfigError(_no_mechanism(env.spec.name))
        teacher = Builder({**offered, "seeds": seeds.child("teacher")}, trusted).build(config["teacher"], "teacher")
        builder = Builder({**offered, "seeds": seeds.child("agent"), "teacher": teacher}, trusted)
        if teacher is not None and not builder.needs(config["agent"], "teacher", "agent"):
            raise ConfigError("a teacher is one more loss of a learning agent; use agent=ppo, or teacher=none")
        agent = builder.build(config["agent"], "agent")
        # A principal is told the objective it is judged on.
        offered["spec"] = replace(env.spec, objective=config["design"]["objective"] or env.spec.objective)
        builder = Builder({**offered, "seeds": seeds.child("principal")}, trusted)
        principal = None if play_only else builder.build(config["principal"], "principal")
    except BaseException:
        env.close()
        raise
    return Parts(env, agent, principal, teacher, llm, device)


def build_loop(config: Config, parts: Parts) -> Loop:
    """`design` where there is a principal, else `learn`."""
    from llmrl.loops.design import DesignLoop
    from llmrl.loops.learn import LearnLoop

    injected: dict[str, Any] = {
        "env": parts.env,
        "agent": parts.agent,
        "seeds": Seeds(config["seed"]).child("loop"),
        "device": parts.device,
    }
    if parts.principal is not None:
        injected["principal"] = parts.principal
        injected["meter"] = parts.llm if isinstance(parts.llm, Meter) else None
        kind, loop = "design", DesignLoop
    else:
        kind, loop = "learn", LearnLoop  # type: ignore[assignment]
    node = {"_target_": f"{loop.__module__}.{loop.__name__}", **config[kind]}
    built: Loop = Builder(injected).build(node, kind)
    return built


def _no_mechanism(env: str) -> str:
    works = [name for name, option in options("env").items() if option.get("mechanism")]
    return (
        f"a principal needs an environment with a mechanism, and {env} has none (env.mechanism may be off); "
        f"use env={', '.join(works)} with their mechanism, or principal=none"
    )


def _device(hardware: Config) -> str:
    """The torch device, with torch's thread count set on the way.

    Raises:
        ConfigError: hardware=gpu on a machine where torch sees none.
    """
    import torch

    if hardware["threads"] is not None:
        torch.set_num_threads(hardware["threads"])
    device = str(hardware["device"])
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"hardware.device={device}, but torch {torch.__version__} sees no GPU here; use hardware=cpu")
    return device
