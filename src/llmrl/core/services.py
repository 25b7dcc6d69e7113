"""Services: objects that are passed to the constructors of parts but are not options, by type of part.

A part requests services by the names of its constructor's parameters; `config.builder.Builder` passes them.
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
    """Base class of services. Subclasses are frozen dataclasses whose fields are named like constructor parameters."""


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
        device: torch device; None if the model does not run on this machine.
        model_factory: factory of the model that the option `make` describes; None if `make` is null.
    """

    seeds: Seeds
    device: str | None = None
    model_factory: Any = None


@dataclass(frozen=True)
class TeacherServices(Services):
    """Services of teachers, which agents and principals also get.

    Attributes:
        spec: spec of the environment.
        seeds: seed tree of the part.
        device: torch device.
        env_options: options of the environment.
        env_factory: function that builds further instances of the environment; None if it cannot be built again.
        llm: chat model; None if the config has none.
        scorer: model that scores texts; None if the config has none.
        has_principal: whether there is a principal.
        prompt_folder: folder of the user's prompt templates; None if there is none.
        folder: run folder; None if nothing is saved.
        processes: processes that compute the run together; None: this process alone.
        cores: number of CPU cores of the run.
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
        society_index: index of the agent's society among the replicates of the run, from 0.
        member: index of the agent among the members of `agent=mixed`; None with other agents.
    """

    teacher: Teacher | None = None
    society_index: int = 0
    member: int | None = None


@dataclass(frozen=True)
class PrincipalServices(TeacherServices):
    """Services of principals.

    Attributes:
        space: space of the vectors that the principal proposes; None without a mechanism or a searched policy.
        controller: policy whose parameters are searched; None if the principal sets a mechanism.
        proposals: number of vectors that the principal proposes in a run; None if unknown.
    """

    space: ParameterSpace | None = None
    controller: Controller | None = None
    proposals: int | None = None

    @classmethod
    def from_agent(cls, services: AgentServices, **overrides: Any) -> PrincipalServices:
        """Return services for a principal with the values of `services`, except for `overrides`."""
        common = {field.name: getattr(services, field.name) for field in dataclasses.fields(TeacherServices)}
        return cls(**common | overrides)


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
"""Names of all services, including `trust`, which the builder adds. A parameter of such a name is an option only if the
option file has a field of that name."""


class PartFactory:
    """A function that builds a part of a config; each call builds a new instance.

    If a parameter has this type hint, its config node is validated but not built (`config.builder.Builder`).

    Args:
        build: function that builds the part; its arguments are changed options and changed services, by name.
        target: class or function that the config node names.
        key: dotted key of the node in the config, for messages.
    """

    def __init__(self, build: Callable[[Mapping[str, Any], Mapping[str, Any]], Any], target: Any, key: str) -> None:
        self._build, self.target, self.key = build, target, key

    def __call__(self, changed_options: Mapping[str, Any] | None = None, **changed_services: Any) -> Any:
        """Build the part.

        Args:
            changed_options: options of the node that are replaced, by name.
            changed_services: services of the builder that are replaced, by name.

        Raises:
            ConfigError: an option is unknown, missing or invalid.
        """
        return self._build(changed_options or {}, changed_services)
