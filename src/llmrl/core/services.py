"""Objects that are passed to the constructors of parts and that no option file describes, by type of part.

A part declares what it needs by the names of its constructor's parameters; `config.builder.Builder` passes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.core.model_protocols import ChatModel, Scorer
    from llmrl.core.processes import ProcessGroup
    from llmrl.core.protocols import Controller, Teacher, VecEnv
    from llmrl.core.seeding import Seeds
    from llmrl.core.spaces import EnvSpec, ParameterSpace


class Services:
    """Base class of services, each of which is a frozen dataclass; a field has the name of the parameter it is for."""


@dataclass(frozen=True)
class EnvServices(Services):
    """Services of environments.

    Attributes:
        seeds: seed tree of the part.
        device: torch device.
    """

    seeds: Seeds
    device: str = "cpu"


@dataclass(frozen=True)
class ModelServices(Services):
    """Services of language models.

    Attributes:
        seeds: seed tree of the part.
        device: torch device; None if the model runs on no device of this machine.
        model_factory: factory of small models; None: the option `make` is null.
    """

    seeds: Seeds
    device: str | None = None
    model_factory: Any = None


@dataclass(frozen=True)
class TeacherServices(Services):
    """Services of teachers, and of agents and principals.

    Attributes:
        spec: spec of the environment.
        seeds: seed tree of the part.
        device: torch device.
        env_options: options of the environment.
        env_factory: function that builds further copies of the environment; None if there is none.
        llm: chat model; None if none is chosen.
        scorer: model that scores texts; None if none is chosen.
        has_principal: whether a principal governs the agents.
        prompt_folder: folder of the user's prompt templates; None if there is none.
        folder: run folder; None if nothing is stored.
        processes: processes that train together.
        cores: CPU cores of the run.
    """

    spec: EnvSpec
    seeds: Seeds
    device: str = "cpu"
    env_options: Mapping[str, Any] = field(default_factory=dict)
    env_factory: Callable[..., Any] | None = None
    llm: ChatModel | None = None
    scorer: Scorer | None = None
    has_principal: bool = False
    prompt_folder: Path | None = None
    folder: Path | None = None
    processes: ProcessGroup | None = None
    cores: int = 1


@dataclass(frozen=True)
class AgentServices(TeacherServices):
    """Services of agents.

    Attributes:
        teacher: teacher of the agent; None if it has none.
        society_index: index of the agent's society among those that adapt to proposals.
        member: index of the agent among the members of `agent=mixed`; None outside of it.
    """

    teacher: Teacher | None = None
    society_index: int = 0
    member: int | None = None


@dataclass(frozen=True)
class PrincipalServices(TeacherServices):
    """Services of principals.

    Attributes:
        space: space of the vectors that the principal proposes; None if there is nothing to propose.
        controller: policy whose parameters are searched; None if the principal sets a mechanism.
        proposals: number of vectors that the principal proposes in a run; None if unknown.
    """

    space: ParameterSpace | None = None
    controller: Controller | None = None
    proposals: int | None = None

    @classmethod
    def from_agent(cls, services: AgentServices, **changes: Any) -> PrincipalServices:
        """Return the services of a principal that shares those of an agent, except for `changes`."""
        shared = {field.name: getattr(services, field.name) for field in dataclasses.fields(TeacherServices)}
        return cls(**shared | changes)


@dataclass(frozen=True)
class ObserverServices(Services):
    """Services of observers.

    Attributes:
        spec: spec of the environment.
        env: the environment.
        folder: run folder; None if nothing is stored.
    """

    spec: EnvSpec
    env: VecEnv
    folder: Path | None = None


SERVICE_NAMES = {"trust"} | frozenset(
    service.name
    for services in (EnvServices, ModelServices, AgentServices, PrincipalServices, ObserverServices)
    for service in dataclasses.fields(services)
)
"""Names of all services, with `trust`, which the builder adds. They count as options only where the file of an option
has such a field."""


class PartFactory:
    """A part of a config that is built later, once for each call.

    A parameter with this type hint is given its config node validated, but unbuilt (`config.builder.Builder`).

    Args:
        build: builds the part with changed options and further injected objects.
        target: class or function that is called.
        where: place of the node in the config, for messages.
    """

    def __init__(self, build: Callable[[Mapping[str, Any], Mapping[str, Any]], Any], target: Any, where: str) -> None:
        self._build, self.target, self.where = build, target, where

    def __call__(self, changed: Mapping[str, Any] | None = None, **injected: Any) -> Any:
        """Build the part.

        Args:
            changed: options that replace those of the node.
            injected: objects by parameter name, which replace those given to its owner.

        Raises:
            ConfigError: as `Builder.build`.
        """
        return self._build(changed or {}, injected)
