"""Loading of the trained agent of a run for any training code, and its export to files that need only PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.api.environments import Interface, build_env_from_config, merge_options
from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError, Incompatible
from llmrl.core.observers import StepObserver
from llmrl.core.records import to_numpy
from llmrl.core.seeding import Seeds
from llmrl.evaluation.saved_runs import SavedRun, change_llm_budget, read_saved_run, remove_principal, remove_teacher
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import Parts, build_parts
from llmrl.llms.client import ChatClient

if TYPE_CHECKING:
    from llmrl.core.spaces import EnvSpec

StrPath = str | os.PathLike[str]


def load_agent(
    run: StrPath, *, n_envs: int = 1, seed: int = 0, calls: int | None = None, trusted: Sequence[str] = ()
) -> TrainedAgent:
    """Load the trained agent of a run from its newest checkpoint.

    Args:
        run: run folder, or the result of a run.
        n_envs: number of games that the agent plays in parallel.
        seed: seed of the actions.
        calls: maximum number of paid replies, if the agent is a language model; None: `llm.budget` of the run.
        trusted: packages outside llmrl whose code the run's config may use.

    Raises:
        CheckpointError, RunFolderError: the folder is not a run folder, or has no intact checkpoint.
        ConfigError: the run has no agent; its config uses code that is not trusted; or the agent observes every step,
            like language-model players, and can only be played by `llmrl.evaluate`.

    Example:
        >>> agent = llmrl.load_agent("outputs/maze/.../s0")  # doctest: +SKIP
        >>> env = agent.make_env(api="gymnasium")  # doctest: +SKIP
        >>> observation, info = env.reset(seed=1)  # doctest: +SKIP
        >>> agent.reset()  # doctest: +SKIP
        >>> env.step(agent.act(observation))  # doctest: +SKIP
    """
    saved_run = read_saved_run(Path(run).expanduser(), trusted)
    config = remove_teacher(saved_run.config)
    config["env"] = merge_options(config["env"], {"n_envs": n_envs})
    llm = build_llm(change_llm_budget(remove_principal(config), calls), folder=None)
    parts = build_parts(config, llm, render=False, play_only=True)
    parts.env.close()  # only its specification is needed
    [agent] = parts.agents
    agent.load_state_dict(saved_run.agent_state)
    trained_agent = TrainedAgent(saved_run, parts, seed)
    if isinstance(agent.policy, StepObserver):
        trained_agent.close()
        raise ConfigError(
            f"the agent of {saved_run.folder} must observe the results of its actions, which load_agent does not "
            "support; play it with llmrl.evaluate"
        )
    return trained_agent


class TrainedAgent:
    """Trained agents of a run, with their recurrent states in the current episodes.

    Args:
        saved_run: config and checkpoint of the run.
        parts: parts of the run, with the agent in its saved state.
        seed: seed of the actions.

    Attributes:
        folder: run folder.
        iteration: iteration of the checkpoint.
        spec: specification of the training environment, with `n_envs` games.
        channels: names of the observation channels that the agent reads.
        names: names of the agents of a game, [n_agents].
    """

    def __init__(self, saved_run: SavedRun, parts: Parts, seed: int = 0) -> None:
        self._saved_run, self._parts = saved_run, parts
        [self._agent] = parts.agents
        self.folder, self.iteration = saved_run.folder, saved_run.iteration
        self.spec: EnvSpec = parts.env.spec
        self.channels = tuple(self.policy.channels)
        self._generator = Seeds(seed).torch("actions")
        agent_names = self.spec.agent_names
        self.names = list(agent_names) if agent_names else [f"player_{i}" for i in range(self.spec.n_agents)]
        self._state: Any = None

    def __repr__(self) -> str:
        return f"TrainedAgent({self.folder}, iteration {self.iteration}, reads {', '.join(self.channels) or 'nothing'})"

    @property
    def policy(self) -> Any:
        """Policy of the agents (`llmrl.core.protocols.Policy`)."""
        return self._agent.policy

    def reset(self, games: Any = None) -> None:
        """Set the recurrent state of the agent to its initial value; to be called when an episode starts.

        Args:
            games: mask of the games to reset, [n_envs] bool; None: all.
        """
        import torch

        if games is None or self._state is None:
            self._state = None if games is None else self._state
            return
        is_start = torch.as_tensor(np.asarray(games, dtype=bool), device=self._state.device)
        self._state = torch.where(is_start[:, None, None], 0, self._state)

    def act(self, observation: Mapping[str, Any], deterministic: bool = False) -> Any:
        """Return actions for an observation.

        Args:
            observation: observation from an environment with one of the interfaces of `make_env`; channels that the
                agent does not read are ignored.
            deterministic: whether to take the most probable action instead of sampling.

        Returns:
            The argument of the environment's `step`: for a `VecEnv` an array [n_envs, n_agents, ...], for a Gymnasium
            `Env` one action, for a PettingZoo environment a dict from agent names to actions.

        Raises:
            ConfigError: a channel or an agent is missing, or the number of games is not `n_envs`.
        """
        if observation and all(isinstance(channels, Mapping) for channels in observation.values()):
            if list(observation) != self.names:
                raise ConfigError(f"the observation has agents {', '.join(observation)}; it must have {self.names}")
            actions = self._choose_actions(self._stack_agents(list(observation.values())), deterministic)
            return {name: _to_single_action(action) for name, action in zip(self.names, actions[0], strict=True)}
        self._check_channels(observation)
        if any(np.shape(observation[name]) == self.spec.observation[name].shape for name in self.channels):
            return _to_single_action(self._choose_actions(self._stack_agents([observation]), deterministic)[0, 0])
        return self._choose_actions({name: to_numpy(observation[name]) for name in self.channels}, deterministic)

    def make_env(self, *, api: Interface = "vec", seed: int = 0, **options: Any) -> Any:
        """Make the environment in which the agent was trained, with `n_envs` games.

        Args:
            api: interface (`llmrl.make_env`).
            seed: root seed of the random numbers.
            options: fields of the environment option that differ from the run, and `render_mode` (`llmrl.make_env`).
        """
        render_mode = options.pop("render_mode", None)
        trusted, device = self._saved_run.config["trusted_modules"], self._parts.device
        env_config = merge_options(self._saved_run.config["env"], {**options, "n_envs": self.spec.n_envs})
        return build_env_from_config(env_config, trusted, seed, api, render_mode, device)

    def close(self) -> None:
        """Close the client of the language model, if there is one."""
        if isinstance(self._parts.llm, ChatClient):
            self._parts.llm.close()

    def _choose_actions(self, arrays: Mapping[str, np.ndarray], deterministic: bool) -> np.ndarray:
        """Return the actions for channels [n_envs, n_agents, ...], and keep the recurrent state."""
        import torch

        shape = (self.spec.n_envs, self.spec.n_agents)
        for name, array in arrays.items():
            if array.shape[:2] != shape:
                raise ConfigError(
                    f"{name} has shape {array.shape}, and the loaded agent plays n_envs={shape[0]} games of {shape[1]} "
                    f"agents; its shape must begin with {shape}"
                )
        inputs: dict[str, Any] = {
            name: x if x.dtype == object else torch.as_tensor(x).to(self._parts.device) for name, x in arrays.items()
        }
        output = self.policy.act(inputs, self._state, self._generator, deterministic)
        self._state = output.state
        return np.asarray(output.action.detach().cpu().numpy())

    def _stack_agents(self, observations: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the channels of the agents of one game, [1, n_agents, ...], with their original dtypes."""
        for observation in observations:
            self._check_channels(observation)
        arrays = {}
        for name in self.channels:
            dtype, values = self.spec.observation[name].dtype, [observation[name] for observation in observations]
            arrays[name] = np.stack([np.asarray(value) for value in values]).astype(dtype)[None]
        return arrays

    def _check_channels(self, observation: Mapping[str, Any]) -> None:
        if missing := [name for name in self.channels if name not in observation]:
            raise ConfigError(
                f"the observation has no channel {missing[0]}, only {', '.join(observation)}; the agent reads "
                f"{', '.join(self.channels)}"
            )


def _to_single_action(action: np.ndarray) -> Any:
    return int(action) if action.ndim == 0 else action


FORMAT_VERSION = 1
"""Version of the format of `agent.json`."""
DESCRIPTION_FILE, WEIGHTS_FILE = "agent.json", "agent.safetensors"
_ACCEPTED_AGENTS_TEXT = (
    "llmrl-export agent accepts the networks of PPO (agent=ppo, pg, ippo, mappo, gaussian_ppo, student_mlp, "
    "student_lstm, cleanup_society, harvest_society) with discrete actions or real numbers"
)


def export_agent(run: StrPath, out: Path | None = None, trusted: Sequence[str] = ()) -> list[Path]:
    """Write the trained agent of a run: `agent.json` and `agent.safetensors`.

    Args:
        run: run folder.
        out: folder of the two files, which is created; None: `<run>/agent`.
        trusted: packages outside llmrl whose code the run's config may use.

    Returns:
        Paths of the two files.

    Raises:
        CheckpointError, RunFolderError: the folder is not a run folder, or has no intact checkpoint.
        ConfigError: the agent is no exportable network of PPO, the config uses code that is not trusted, or safetensors
            is not installed.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise ConfigError(
            f"llmrl-export agent needs safetensors, which cannot be imported ({error}): pip install 'llmrl[export]'"
        ) from error
    from llmrl.agents.ppo_agent import PPOAgent
    from llmrl.networks.layer_export import ActorLayers
    from llmrl.run.files import write_json

    folder = Path(run).expanduser()
    config = read_saved_run(folder, trusted).config
    target = config["agent"]["_target_"]
    agent_class = Builder(trusted=config["trusted_modules"]).locate(target, "agent")
    if not (isinstance(agent_class, type) and issubclass(agent_class, PPOAgent)):
        raise ConfigError(f"{folder} has an agent of the class {target}; {_ACCEPTED_AGENTS_TEXT}")
    agent = load_agent(folder, trusted=trusted)
    policy, spec = agent.policy, agent.spec
    try:
        networks = [ActorLayers(network) for network in policy.members]
    except Incompatible as error:
        raise ConfigError(f"{folder}: {error}; {_ACCEPTED_AGENTS_TEXT}") from error
    player_one_hots = policy.player_one_hots.tolist() if spec.n_players > 1 else [[]] * spec.n_agents
    continuous = spec.continuous_actions
    description = {
        "format": FORMAT_VERSION,
        "environment": spec.name,
        "agents": {
            name: {"prefix": f"{i % len(networks)}/", "identity": identity}
            for i, (name, identity) in enumerate(zip(agent.names, player_one_hots, strict=True))
        },
        "observation": {
            name: {"shape": list(spec.observation[name].shape), "dtype": spec.observation[name].dtype}
            for name in policy.channels
        },
        "map": policy.members[0].spatial_channel,
        "layers": networks[0].layers,
        "actions": list(spec.action_names)
        if continuous is None
        else [
            {"name": name, "low": low, "high": high}
            for name, low, high in zip(continuous.names, continuous.low, continuous.high, strict=True)
        ],
    }
    out_folder = folder / "agent" if out is None else out
    out_folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{i}/{name}": tensor.cpu().contiguous()
        for i, layers in enumerate(networks)
        for name, tensor in layers.tensors.items()
    }
    write_json(out_folder / DESCRIPTION_FILE, description)
    save_file(tensors, out_folder / WEIGHTS_FILE)
    return [out_folder / DESCRIPTION_FILE, out_folder / WEIGHTS_FILE]
