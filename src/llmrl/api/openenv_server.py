"""Server of environments with the protocol of OpenEnv; each session plays one game.

The package `openenv` is in no extra of llmrl, because it needs an older Pillow (docs/with_other_tools.md).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from llmrl.core.errors import ConfigError
from llmrl.envs.adapters.parallel import ParallelAdapter

try:
    from openenv.core.env_server import Action, ConcurrencyConfig, Environment, Observation, State, create_fastapi_app
    from openenv.core.env_server.types import EnvironmentMetadata
except ModuleNotFoundError as error:
    raise ConfigError(
        f"llmrl-serve needs the package {error.name}, which is not installed: pip install openenv (it needs pillow<13, "
        "so use another virtual environment; docs/with_other_tools.md)"
    ) from error

if TYPE_CHECKING:
    from fastapi import FastAPI

    from llmrl.core.protocols import VecEnv
    from llmrl.core.spaces import EnvSpec


class AgentActions(Action):  # type: ignore[misc]
    """Actions of all agents in one step: each is an index, a list of numbers (continuous actions) or a name."""

    actions: dict[str, int | list[float] | str] = Field(description="action of each agent, by agent id")


class AgentObservations(Observation):  # type: ignore[misc]
    """Observations of all agents; `reward` is the mean reward of the agents.

    Attributes:
        observations: channels of each agent by agent id and channel name, as nested lists or texts.
        rewards: rewards of the last step by agent id; empty after a reset.
        base_rewards: rewards of the last step before payments of the mechanism, by agent id.
        metrics: metrics of the last step by name.
        mechanism: values of the current mechanism by parameter name; empty without a mechanism.
        terminated, truncated: whether the episode was terminated or truncated by the last step.
    """

    observations: dict[str, dict[str, Any]]
    rewards: dict[str, float] = Field(default_factory=dict)
    base_rewards: dict[str, float] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
    mechanism: dict[str, float] = Field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False


class EpisodeState(State):  # type: ignore[misc]
    """State of a session: episode id, number of steps, agent ids, and values of the current mechanism."""

    agents: list[str] = Field(default_factory=list)
    mechanism: dict[str, float] = Field(default_factory=dict)


class ServedEnvironment(Environment[AgentActions, AgentObservations, EpisodeState]):  # type: ignore[misc]
    """Session of OpenEnv: an environment with one game of a `VecEnv`.

    Args:
        env: environment with one game, which is closed at the end of the session.
        mechanism: mechanism vector of all episodes, [d]; None: the default of the environment.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: VecEnv, mechanism: np.ndarray | None = None) -> None:
        super().__init__()
        self._env, self._spec = ParallelAdapter(env), env.spec
        self._agents = self._env.possible_agents
        self._mechanism: dict[str, float] = {}
        if mechanism is not None:
            env.set_mechanism(mechanism)
        if self._spec.mechanism is not None:
            values = self._spec.mechanism.neutral if mechanism is None else mechanism
            self._mechanism = dict(zip(self._spec.mechanism.names, map(float, values), strict=True))
        self._state = EpisodeState(agents=self._agents, mechanism=self._mechanism)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> AgentObservations:
        """Start an episode.

        Args:
            seed: seed of the episode; None: the next episode in the random stream of the session.
            episode_id: id of the episode; None: a random id.
            options: `context`, an index into `EnvSpec.contexts`.

        Raises:
            ValueError: an option is unknown.
        """
        if unknown := set(options) - {"context"}:
            raise ValueError(f"reset has no option {', '.join(sorted(unknown))}; it has seed, episode_id and context")
        observations, _ = self._env.reset(seed, options)
        self._state.episode_id = episode_id or uuid.uuid4().hex
        self._state.step_count = 0
        return AgentObservations(observations=_to_lists(observations), mechanism=self._mechanism)

    def step(self, action: AgentActions, timeout_s: float | None = None, **_: Any) -> AgentObservations:
        """Take one action for each agent.

        Raises:
            ValueError: no episode is in progress, agents are missing or unknown, or an action is invalid.
        """
        if not self._env.agents:
            raise ValueError("no episode is in progress; call reset first")
        if set(action.actions) != set(self._agents):
            raise ValueError(f"actions must name each of {', '.join(self._agents)} once, got {sorted(action.actions)}")
        actions = {agent: _parse_action(value, self._spec) for agent, value in action.actions.items()}
        observations, rewards, terminated, truncated, infos = self._env.step(actions)
        self._state.step_count += 1
        base_rewards = {agent: info.pop("base_reward") for agent, info in infos.items()}
        first_agent = self._agents[0]
        return AgentObservations(
            observations=_to_lists(observations),
            rewards=rewards,
            base_rewards=base_rewards,
            metrics=infos[first_agent],
            mechanism=self._mechanism,
            terminated=terminated[first_agent],
            truncated=truncated[first_agent],
            done=terminated[first_agent] or truncated[first_agent],
            reward=sum(rewards.values()) / len(rewards),
        )

    @property
    def state(self) -> EpisodeState:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        from llmrl import __version__

        text = self._spec.text
        actions = ", ".join(self._spec.action_names or self._spec.continuous_action_names)
        description = f"{'' if text is None else text.goal} Agents: {', '.join(self._agents)}. Actions: {actions}."
        return EnvironmentMetadata(name=self._spec.name, description=description.strip(), version=__version__)

    def close(self) -> None:
        self._env.close()


def make_app(
    make_env: Callable[[], VecEnv], mechanism: np.ndarray | None, max_sessions: int, session_timeout_s: float | None
) -> FastAPI:
    """Return the server application of an environment.

    Args:
        make_env: function that makes an environment with one game; called for each session.
        mechanism: mechanism vector of all episodes, [d]; None: the default of the environment.
        max_sessions: maximum number of concurrent sessions; further requests for a session are refused.
        session_timeout_s: time in seconds after which an idle session is closed; None: never.
    """
    return create_fastapi_app(
        lambda: ServedEnvironment(make_env(), mechanism),
        AgentActions,
        AgentObservations,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=session_timeout_s),
        state_cls=EpisodeState,
    )


def _parse_action(action: int | list[float] | str, spec: EnvSpec) -> Any:
    """Return an action of one agent as an index, or as a list of numbers for continuous actions.

    Raises:
        ValueError: the action is invalid.
    """
    action_space = spec.continuous_actions
    if action_space is not None:
        if not isinstance(action, list) or len(action) != action_space.dim:
            raise ValueError(f"an action must be a list of {action_space.description}, got {action!r}")
        return action
    if isinstance(action, str) and action in spec.action_names:
        return spec.action_names.index(action)
    if not isinstance(action, int) or not 0 <= action < spec.n_actions:
        raise ValueError(
            f"an action must be an index from 0 to {spec.n_actions - 1} or a name ({', '.join(spec.action_names)}), "
            f"got {action!r}"
        )
    return action


def _to_lists(observations: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return observations by agent with arrays converted to lists; float32 numbers keep their exact value."""
    return {
        agent: {
            name: value if isinstance(value, str) else np.asarray(value).tolist() for name, value in channels.items()
        }
        for agent, channels in observations.items()
    }
