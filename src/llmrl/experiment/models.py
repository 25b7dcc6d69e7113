"""The language model of an experiment: which parts ask for one, of which kind, and the client around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import options
from llmrl.core.protocols import Scorer
from llmrl.core.seeding import Seeds
from llmrl.experiment.means import Means, Model
from llmrl.llms.client import ChatClient
from llmrl.llms.provider import Provider

Config = Mapping[str, Any]

POLICIES = ("cache", "cache_dir", "share_replies", "failures", "retry", "limits", "budget", "max_invalid")
"""Keys of the config's `llm` that say how a model is asked; the others say which it is."""
ASKING = ("principal", "agent", "teacher")
"""Groups whose parts may ask a model."""


def build_llm(
    config: Config, folder: Path | None, check: bool = True, stopping: Callable[[], bool] = lambda: False
) -> Model:
    """Return the language model, if a part asks for one; its calls are logged into `folder`.

    Args:
        config: resolved, plain containers.
        folder: of the run; None: calls are logged nowhere.
        check: find out at once whether the model could ever answer.
        stopping: whether the run is to stop, so that no outage is waited for.

    Raises:
        ConfigError: a part needs a model and none was chosen, or one of the other kind.
        LLMError: the model could never answer (missing key, server down).
    """
    means = Means(config, model_asked)
    if folder is not None and isinstance(means.model, ChatClient):
        means.model.join_run(folder, stopping)
    if check and means.model is not None:
        means.model.check()
    return means.model


def model_asked(means: Means) -> Model:
    """Make the language model that the parts of a config ask for, unchecked; None where none does.

    A part asks for a chat model with a parameter `llm`, and for one that scores texts with a parameter `scorer`.

    Raises:
        ConfigError: a part needs a model and none was chosen, or one of the other kind.
    """
    config = means.config
    builder = Builder(trusted=config["trusted_modules"])
    users = {kind: _users(config, kind, builder) for kind in ("llm", "scorer")}
    if users["llm"] and users["scorer"]:
        raise ConfigError(
            f"{users['llm'][0]} asks for a chat model and {users['scorer'][0]} for one that scores texts, and llm= "
            "chooses one model; change one of the two parts"
        )
    kind = "llm" if users["llm"] else "scorer"
    if not users[kind]:
        return None
    _check_kind(config["llm"], kind, users[kind][0], builder)
    return build_model(means)


def asking(config: Config, groups: Sequence[str] = ASKING) -> list[str]:
    """Those of `groups` whose chosen part uses the model that `llm=` chooses."""
    builder = Builder(trusted=config["trusted_modules"])
    found = {group for kind in ("llm", "scorer") for group in _users(config, kind, builder)}
    return [group for group in groups if group in found]


def build_model(means: Means, llm: Config | None = None) -> Model:
    """Make the model that the config's `llm`, or another node like it, describes, whoever may ask it; unchecked.

    Raises:
        ConfigError: an option that cannot be.
    """
    config = means.config
    trusted, chosen = config["trusted_modules"], config["llm"] if llm is None else llm
    node = {name: value for name, value in chosen.items() if name not in POLICIES}
    injected: dict[str, Any] = {"seeds": Seeds(config["seed"]).child("llm")}
    if Builder(trusted=trusted).needs(node, "device", "llm"):
        injected["device"] = means.device
    if node.get("make") is not None:
        from llmrl.experiment.small_models import SmallModels

        injected["workshop"] = SmallModels(config)
    model: Provider | Model = Builder(injected, trusted).build(node, "llm")
    if isinstance(model, Provider):
        # A model that is trained has no `max_invalid`: what it cannot do yet is what it is to learn.
        policies = {name: chosen[name] for name in POLICIES if name in chosen}
        connect = {"_target_": "llmrl.llms.client.connect", **policies}
        model = Builder({"provider": model, "seed": config["seed"]}, trusted).build(connect, "llm")
    assert model is None or isinstance(model, ChatClient | Scorer)
    return model


def _users(config: Config, kind: str, builder: Builder) -> list[str]:
    """The groups whose chosen part has a parameter `kind`."""
    return [group for group in ASKING if builder.needs(config[group], kind, group)]


def _check_kind(node: Config, kind: str, user: str, builder: Builder) -> None:
    """Raise ConfigError unless the option `node` of llm= is of the kind a part asks for; nothing is built."""

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
        raise ConfigError(f"the chosen {user} needs a language model; choose one of llm={works}")
    wanted = "chats" if kind == "llm" else "scores texts with weights of its own"
    why = "only scores texts" if kind == "llm" else "gives replies and no log-probabilities"
    raise ConfigError(f"the chosen {user} needs a language model that {wanted}, and {chosen} {why}; use llm={works}")
