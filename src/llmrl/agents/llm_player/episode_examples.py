"""Episodes of other players as examples: played by a rule for the game, or recorded by an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from llmrl.agents.llm_player.answer_format import Action, AnswerFormat
from llmrl.agents.llm_player.conversation import round_reward, to_json
from llmrl.core.errors import ConfigError
from llmrl.core.records import embedded
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.run.artifacts import read_config
from llmrl.run.episode_files import EPISODES, FOLDER, REPLIES
from llmrl.run.files import read_lines

if TYPE_CHECKING:
    from llmrl.core.protocols import VecEnv
    from llmrl.envs.gym.env_factory import EnvFactory
    from llmrl.envs.gym.vec_env import GymnasiumEnv

RULE = "heuristic"
"""Value of `agent.examples_path` for the rule of `agent=heuristic`."""
_MAX_STEPS = 10_000
"""Maximum number of steps of an episode that a rule plays."""


@dataclass(frozen=True)
class RecordedEpisode:
    """Recorded episode.

    Attributes:
        steps: one record per step: `observation`, `action` (its name, or numbers by name), `reward`; for a language
            model also `reflection`, and `valid` (false: the step was not its choice).
        row: record of the episode: `return`, `length`, and `success` if it is known.
    """

    steps: Sequence[Mapping[str, Any]]
    row: Mapping[str, Any]


@dataclass(frozen=True)
class EpisodeExample:
    """Episode as it is shown to a player.

    Attributes:
        lines: first steps, as JSON.
        left_out: number of further steps.
        end: description of the end in words.
    """

    lines: tuple[str, ...]
    left_out: int
    end: str


def examples(
    recorded: Sequence[RecordedEpisode], spec: EnvSpec, answers: AnswerFormat, steps: int, reflect: bool
) -> list[EpisodeExample]:
    """Return recorded episodes in the form that a player is shown.

    Args:
        recorded: the episodes.
        spec: spec of the player's environment.
        answers: format of the player's answers.
        steps: number of first steps of each episode to show.
        reflect: whether reflections are shown.

    Raises:
        ConfigError: an episode is of another game.
    """
    return [_example(episode, spec, answers, steps, reflect) for episode in recorded]


def play_rule_episodes(
    one_game: Callable[[], GymnasiumEnv | VecEnv] | None, env_factory: EnvFactory | None, seeds: Seeds, n: int
) -> list[RecordedEpisode]:
    """Play `n` episodes by the environment's rule and return them.

    Args:
        one_game: factory of single games in words; None: the environment has none.
        env_factory: factory of Gymnasium environments, if its games are such.
        seeds: seed tree; episode k starts from `k`.
        n: number of episodes.

    Raises:
        ConfigError: there is no rule for the environment, or no factory of single games.
    """
    if one_game is None:
        raise ConfigError(
            f"agent.examples_path={RULE} needs an environment whose single games can be played; record episodes in "
            "another run (play.records), and use that run"
        )
    from llmrl.agents.heuristic_agent import HeuristicPolicy

    env = one_game()
    try:
        policy = HeuristicPolicy(env.spec, env_factory)
        return [_play_episode(env, policy.act, seeds.integer(k)) for k in range(n)]
    finally:
        env.close()


def read_run_episodes(folder: Path, n: int, seed: int | None) -> list[RecordedEpisode]:
    """Return the first `n` recorded episodes of a run, from the perspective of the first player.

    Args:
        folder: run folder.
        n: number of episodes.
        seed: seed of the run that the examples are for; None: it has none.

    Raises:
        ConfigError: the run has too few episodes, had no observations in words, or has the same seed. Episode k of both
            runs would then start from the same state, and an example would reveal the course of the player's own
            episode.
        RunFolderError: it cannot be read.
    """
    origin = f"agent.examples_path={folder}"
    if seed is not None and read_config(folder, ()).get("seed") == seed:
        raise ConfigError(
            f"{origin} has the seed of this run, {seed}, so its episodes have the same starts; use a run of another "
            "seed, e.g. run:<hash>/s1000"
        )
    episodes: list[RecordedEpisode] = []
    for row in read_lines(folder / EPISODES):
        path = folder / FOLDER / str(row["episode"]) / REPLIES
        lines = [line for line in read_lines(path) if line.get("agent", 0) == 0] if path.is_file() else []
        if lines and len(episodes) < n:
            episodes.append(RecordedEpisode(lines, row))
    if len(episodes) < n:
        raise ConfigError(
            f"{origin} has {len(episodes)} recorded episodes, but agent.examples={n} are needed; run it with "
            f"play.records={n} or more"
        )
    if any("observation" not in line for episode in episodes for line in episode.steps):
        raise ConfigError(f"{origin} has no observations in words; run it with env.text, or env.observe=[text]")
    return episodes


def _play_episode(
    env: GymnasiumEnv | VecEnv, act: Callable[[dict[str, torch.Tensor]], Any], seed: int
) -> RecordedEpisode:
    """Play one episode and return it from the perspective of the first player."""
    if hasattr(env, "seed_games"):
        env.seed_games(np.array([seed], dtype=np.int64))
        observation = env.reset()
    else:
        observation = env.reset(seed=seed)
    steps, is_done, success = [], False, None
    while not is_done:
        numbers = {n: x for n, x in observation.items() if isinstance(x, np.ndarray) and x.dtype.kind != "O"}
        tensors = {name: torch.as_tensor(x) for name, x in numbers.items()}
        action = act(tensors).action.numpy()
        step = env.step(action)
        line = {"observation": embedded(str(observation["text"][0, 0]))}
        reward = float(np.asarray(step.reward)[0, 0])
        steps.append({**line, "action": env.spec.action_names[int(action[0, 0])], "reward": reward})
        is_done = bool(np.asarray(step.terminated)[0] or np.asarray(step.truncated)[0])
        observation = step.observation
        success = float(step.info["success"][0]) if "success" in step.info else None
        if len(steps) >= _MAX_STEPS and not is_done:
            raise ConfigError(f"the rule for env={env.spec.name} does not end an episode; set env.horizon")
    row = {"return": sum(line["reward"] for line in steps), "length": len(steps)}
    return RecordedEpisode(steps, row if success is None else {**row, "success": success})


def _example(
    episode: RecordedEpisode, spec: EnvSpec, answers: AnswerFormat, steps: int, reflect: bool
) -> EpisodeExample:
    """Return the first `steps` steps of an episode, and its end in words."""
    lines = tuple(_line(step, spec, answers, reflect) for step in episode.steps[:steps])
    row = episode.row
    outcome = {True: ", a success", False: ", no success"}.get(bool(row["success"]), "") if "success" in row else ""
    end = f"It ended after {int(row['length'])} steps, with a return of {round_reward(row['return'])}{outcome}."
    return EpisodeExample(lines, len(episode.steps) - len(lines), end)


def _line(step: Mapping[str, Any], spec: EnvSpec, answers: AnswerFormat, reflect: bool) -> str:
    """Return a step as JSON, without a reflection if the action replaced an invalid reply."""
    assert spec.text is not None
    observation, fields = step["observation"], {name for name, _ in spec.text.observation}
    if isinstance(observation, Mapping) and not fields.issuperset(observation):
        unknown_field = next(name for name in observation if name not in fields)
        raise ConfigError(
            f"agent.examples_path: its observations contain {unknown_field!r}, which those of env={spec.name} do not; "
            "use a run of the same game"
        )
    is_valid = step.get("valid", True)
    reflection = {"reflection": step["reflection"]} if reflect and is_valid and step.get("reflection") else {}
    answer_fields = {"action": answers.as_json(_action(step["action"], spec))}
    # An action that replaced an invalid reply is not shown as a choice.
    answer_fields = (
        answer_fields if is_valid else {"no_usable_reply": f"done instead: {to_json(answer_fields['action'])}"}
    )
    return to_json({"observation": observation, **reflection, **answer_fields, "reward": round_reward(step["reward"])})


def _action(recorded_action: Any, spec: EnvSpec) -> Action:
    """Return the action of the player's environment for a recorded action; raise ConfigError if there is none."""
    names = spec.action_names if spec.continuous_actions is None else spec.continuous_action_names
    if spec.continuous_actions is None and recorded_action in names:
        return names.index(recorded_action)
    if spec.text is not None and spec.text.amount and recorded_action in range(spec.n_actions):
        return int(recorded_action)
    if (
        spec.continuous_actions is not None
        and isinstance(recorded_action, Mapping)
        and set(recorded_action) == set(names)
    ):
        return [round(float(recorded_action[name]), 4) for name in names]
    raise ConfigError(
        f"agent.examples_path: its actions contain {recorded_action!r}, but env={spec.name} accepts "
        f"{', '.join(names)}; use a run of the same game"
    )
