"""Load the agent of a run, to act in anybody's loop."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from llmrl.api.environments import Interface, build, with_options
from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    from llmrl.core.spaces import EnvSpec
    from llmrl.evaluation.saved_runs import SavedRun
    from llmrl.experiment.parts import Parts

Place = str | os.PathLike[str]
_Form = Literal["vec", "games", "game", "agents"]


def load_agent(
    run: Place, *, n_envs: int = 1, seed: int = 0, calls: int | None = None, trusted: Sequence[str] = ()
) -> TrainedAgent:
    """Load the trained agent of a run from its newest checkpoint.

    Args:
        run: the run folder, or the result of a run.
        n_envs: games that it plays side by side.
        seed: of the actions it draws.
        calls: replies of a language model that may be paid for, where the agent asks one; None: the run's own budget.
        trusted: packages that the run's config may name although they are no part of llmrl.

    Raises:
        CheckpointError, RunFolderError: the folder is no run, or has no whole checkpoint.
        ConfigError: the run has no agent, or its config names code that is not trusted; or the agent has to be told
            what its actions led to, as players that are language models are: `llmrl.evaluate` plays those.

    Example:
        >>> agent = llmrl.load_agent("outputs/maze/.../s0")  # doctest: +SKIP
        >>> env = agent.make_env(api="gymnasium")  # doctest: +SKIP
        >>> observation, info = env.reset(seed=1)  # doctest: +SKIP
        >>> agent.reset()  # doctest: +SKIP
        >>> env.step(agent.act(observation))  # doctest: +SKIP
    """
    from llmrl.core.observers import StepObserver
    from llmrl.evaluation.saved_runs import alone, open_saved, with_budget, without_teacher
    from llmrl.experiment.models import build_llm
    from llmrl.experiment.parts import build_parts

    saved = open_saved(Path(run).expanduser(), trusted)
    config = without_teacher(saved.config)
    config["env"] = with_options(config["env"], {"n_envs": n_envs})
    llm = build_llm(with_budget(alone(config), calls), folder=None)
    parts = build_parts(config, llm, render=False, play_only=True)
    parts.env.close()  # it has told what it is
    [agent] = parts.agents
    agent.load_state_dict(saved.agent)
    found = TrainedAgent(saved, parts, seed)
    if isinstance(agent.policy, StepObserver):
        found.close()
        raise ConfigError(
            f"the agent of {saved.folder} has to be told what its actions led to; play it with llmrl.evaluate"
        )
    return found


class TrainedAgent:
    """The agents of a run, acting with the weights that were saved. What they remember of an episode is kept here.

    Args:
        saved: the run.
        parts: of the run, its agent in the saved state.
        seed: of the actions it draws.

    Attributes:
        folder: of the run.
        iteration: of the checkpoint.
        spec: of the environment it was trained in, with as many games as it plays.
        channels: of observations that it reads.
    """

    def __init__(self, saved: SavedRun, parts: Parts, seed: int = 0) -> None:
        from llmrl.core.seeding import Seeds

        self._saved, self._parts = saved, parts
        [self._agent] = parts.agents
        self.folder, self.iteration = saved.folder, saved.iteration
        self.spec: EnvSpec = parts.env.spec
        self.channels = tuple(self._agent.policy.channels)
        self._generator = Seeds(seed).torch("actions")
        own = self.spec.agent_names
        self._names = list(own) if own else [f"player_{i}" for i in range(self.spec.n_agents)]
        self._state: Any = None

    def __repr__(self) -> str:
        return f"TrainedAgent({self.folder}, iteration {self.iteration}, reads {', '.join(self.channels) or 'nothing'})"

    def reset(self, games: Any = None) -> None:
        """Begin new episodes: forget what was seen.

        Args:
            games: in which games, [n_envs] bool; None: in all.
        """
        import torch

        if games is None or self._state is None:
            self._state = None if games is None else self._state
            return
        begun = torch.as_tensor(np.asarray(games, dtype=bool), device=self._state.device)
        self._state = torch.where(begun[:, None, None], 0, self._state)

    def act(self, observation: Mapping[str, Any], deterministic: bool = False) -> Any:
        """Choose actions.

        Args:
            observation: as an environment of one of the interfaces of `make_env` gives it; more channels than are read
                may be in it.
            deterministic: take the likeliest action instead of drawing one.

        Returns:
            What that environment's `step` takes: of a `VecEnv` [n_envs, n_agents] (numbers of an action behind), of a
            Gymnasium `VectorEnv` [n_envs], of an `Env` one action, of a PettingZoo environment one for each agent by
            its name.

        Raises:
            ConfigError: a channel is missing, or the observation is of another number of games.
        """
        import torch

        form, arrays = self._arrays(observation)
        read: dict[str, Any] = {
            name: x if x.dtype == object else torch.as_tensor(x).to(self._parts.device) for name, x in arrays.items()
        }
        act = self._agent.policy.act(read, self._state, self._generator, deterministic)
        self._state = act.state
        action = act.action.detach().cpu().numpy()
        if form == "vec":
            return action
        if form == "agents":
            return {name: self._one(action[0, i]) for i, name in enumerate(observation)}
        return action[:, 0] if form == "games" else self._one(action[0, 0])

    def make_env(self, *, api: Interface = "vec", seed: int = 0, **options: Any) -> Any:
        """Make the environment that the agent was trained in, with as many games as it plays.

        Args:
            api: as in `llmrl.make_env`.
            seed: as in `llmrl.make_env`.
            options: as in `llmrl.make_env`; they change the run's own.
        """
        render_mode = options.pop("render_mode", None)
        node = with_options(self._saved.config["env"], {**options, "n_envs": self.spec.n_envs})
        return build(node, api, render_mode, seed, self._parts.device, self._saved.config["trusted_modules"])

    def close(self) -> None:
        """Let go of the language model, if there is one."""
        from llmrl.llms.client import ChatClient

        if isinstance(self._parts.llm, ChatClient):
            self._parts.llm.close()

    def _one(self, action: np.ndarray) -> Any:
        return int(action) if action.ndim == 0 else action

    def _arrays(self, observation: Mapping[str, Any]) -> tuple[_Form, dict[str, np.ndarray]]:
        """Which interface an observation is of, and the channels that are read, [n_envs, n_agents, ...] each."""
        if observation and all(isinstance(own, Mapping) for own in observation.values()):
            if list(observation) != self._names:
                raise ConfigError(f"observations are of {', '.join(observation)}; the agents are {self._names}")
            self._check(next(iter(observation.values())))
            return "agents", {
                name: self._stacked([own[name] for own in observation.values()], name)[None] for name in self.channels
            }
        self._check(observation)
        forms = {name: self._form(name, observation[name]) for name in self.channels}
        form: _Form = next(iter(forms.values()), "vec")
        arrays = {}
        for name, own in forms.items():
            value = observation[name]
            if own == "vec":
                arrays[name] = value if isinstance(value, np.ndarray) else _host(value)
            else:
                games = [value] if own == "game" else list(value)
                arrays[name] = self._stacked(games, name)[:, None]
        shape = (self.spec.n_envs, self.spec.n_agents)
        for name, array in arrays.items():
            if array.shape[:2] != shape:
                raise ConfigError(
                    f"{name} is of {array.shape[0]} games of {array.shape[1]} agents, the agent plays {shape[0]} of "
                    f"{shape[1]}: load_agent(..., n_envs={array.shape[0]})"
                )
        return form, arrays

    def _check(self, observation: Mapping[str, Any]) -> None:
        if missing := [name for name in self.channels if name not in observation]:
            raise ConfigError(
                f"the agent reads {', '.join(self.channels)}, and {missing[0]} is not in the observation: "
                f"{', '.join(observation)}"
            )

    def _form(self, name: str, value: Any) -> _Form:
        """By how many axes there are before those of the channel."""
        if isinstance(value, str | tuple):
            return "game" if isinstance(value, str) else "games"
        before = len(np.shape(value) if isinstance(value, np.ndarray) else value.shape)
        before -= len(self.spec.observation[name].shape)
        forms: dict[int, _Form] = {0: "game", 1: "games", 2: "vec"}
        if before not in forms:
            raise ConfigError(
                f"{name} has shape {tuple(value.shape)}; of one agent it is {self.spec.observation[name].shape}"
            )
        return forms[before]

    def _stacked(self, values: Sequence[Any], name: str) -> np.ndarray:
        """Of several games or agents, [n, ...]; truth values as they were before Gymnasium had them."""
        channel = self.spec.observation[name]
        if channel.dtype == "object":
            texts = np.empty(len(values), dtype=object)
            texts[:] = values
            return texts
        return np.stack([np.asarray(value) for value in values]).astype(channel.dtype)


def _host(value: Any) -> np.ndarray:
    from llmrl.core.records import on_host

    return on_host(value)
