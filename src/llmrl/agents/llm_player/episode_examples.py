"""Episodes that others played, as examples for a player: of a rule for the game, or out of an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from llmrl.agents.llm_player.answer_format import Action, AnswerFormat
from llmrl.agents.llm_player.conversation import said, tidy
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
"""Instead of a run: the rule that `agent=heuristic` plays by."""
_LONGEST = 10_000
"""Steps after which a rule is taken never to end an episode."""


@dataclass(frozen=True)
class RecordedEpisode:
    """What was written down of an episode.

    Attributes:
        steps: a line each: `observation`, `action` (its name, or numbers by name), `reward`; of a language model also
            `reflection`, and `valid` (false: the step was not its choice).
        row: the line of the whole episode: `return`, `length`, and `success` where that is known.
    """

    steps: Sequence[Mapping[str, Any]]
    row: Mapping[str, Any]


@dataclass(frozen=True)
class EpisodeExample:
    """An episode as a player is told of it.

    Attributes:
        lines: its first steps, in JSON.
        left_out: steps that come after these.
        end: how it ended, in words.
    """

    lines: tuple[str, ...]
    left_out: int
    end: str


def examples(
    recorded: Sequence[RecordedEpisode], spec: EnvSpec, answers: AnswerFormat, steps: int, reflect: bool
) -> list[EpisodeExample]:
    """Return episodes in the words of a player.

    Args:
        recorded: the episodes.
        spec: of the environment that the player plays.
        answers: of the player.
        steps: of each episode that are told, the first ones.
        reflect: whether reflections are told, where there are any.

    Raises:
        ConfigError: an episode is of another game.
    """
    return [_example(each, spec, answers, steps, reflect) for each in recorded]


def of_rule(
    one_game: Callable[[], GymnasiumEnv | VecEnv] | None, env_factory: EnvFactory | None, seeds: Seeds, n: int
) -> list[RecordedEpisode]:
    """Return `n` episodes that the rule for the environment plays now.

    Args:
        one_game: makes a game of the environment in words; None: it cannot be played apart.
        env_factory: of its games, if they are Gymnasium's.
        seeds: episode k begins from `k`.
        n: episodes.

    Raises:
        ConfigError: there is no rule for the environment, or no game of it can be played apart.
    """
    if one_game is None:
        raise ConfigError(
            f"agent.examples_from={RULE}: no game of this environment can be played beside the others; record episodes "
            "by a run of its own (play.records), and name that run"
        )
    from llmrl.agents.heuristic_agent import HeuristicPolicy

    env = one_game()
    try:
        policy = HeuristicPolicy(env.spec, env_factory)
        return [_played(env, policy.act, seeds.integer(k)) for k in range(n)]
    finally:
        env.close()


def of_run(folder: Path, n: int, seed: int | None) -> list[RecordedEpisode]:
    """Return the first `n` episodes that a run has written down, of several players the first one's.

    Args:
        folder: of the run.
        n: episodes.
        seed: of the run that they are examples for; None: it has none.

    Raises:
        ConfigError: the run has too few, did not see words, or has the same seed: episode k of both begins alike, and
            an example would tell how the player's own episode goes.
        RunFolderError: it cannot be read.
    """
    where = f"agent.examples_from={folder}"
    if seed is not None and read_config(folder, ()).get("seed") == seed:
        raise ConfigError(
            f"{where} has the seed of this run, {seed}, so its episodes begin as those that are played here; name a "
            "run of another seed, e.g. run:<hash>/s1000"
        )
    found: list[RecordedEpisode] = []
    for row in read_lines(folder / EPISODES):
        path = folder / FOLDER / str(row["episode"]) / REPLIES
        lines = [line for line in read_lines(path) if line.get("agent", 0) == 0] if path.is_file() else []
        if lines and len(found) < n:
            found.append(RecordedEpisode(lines, row))
    if len(found) < n:
        raise ConfigError(
            f"{where} has written down {len(found)} episodes step by step, and agent.examples={n} are needed; play it "
            f"with play.records={n} or more"
        )
    if any("observation" not in line for each in found for line in each.steps):
        raise ConfigError(f"{where} did not see its game in words; play it with env.text, or env.observe=[text]")
    return found


def _played(env: GymnasiumEnv | VecEnv, act: Callable[[dict[str, torch.Tensor]], Any], seed: int) -> RecordedEpisode:
    """Return an episode as its first player saw it."""
    if hasattr(env, "seed_games"):
        env.seed_games(np.array([seed], dtype=np.int64))
        observation = env.reset()
    else:
        observation = env.reset(seed=seed)
    steps, over, won = [], False, None
    while not over:
        numbers = {n: x for n, x in observation.items() if isinstance(x, np.ndarray) and x.dtype.kind != "O"}
        seen = {name: torch.as_tensor(x) for name, x in numbers.items()}
        action = act(seen).action.numpy()
        step = env.step(action)
        line = {"observation": embedded(str(observation["text"][0, 0]))}
        reward = float(np.asarray(step.reward)[0, 0])
        steps.append({**line, "action": env.spec.action_names[int(action[0, 0])], "reward": reward})
        over = bool(np.asarray(step.terminated)[0] or np.asarray(step.truncated)[0])
        observation = step.observation
        won = float(step.info["success"][0]) if "success" in step.info else None
        if len(steps) >= _LONGEST and not over:
            raise ConfigError(f"the rule for env={env.spec.name} does not end an episode; set env.horizon")
    row = {"return": sum(line["reward"] for line in steps), "length": len(steps)}
    return RecordedEpisode(steps, row if won is None else {**row, "success": won})


def _example(
    recorded: RecordedEpisode, spec: EnvSpec, answers: AnswerFormat, steps: int, reflect: bool
) -> EpisodeExample:
    lines = tuple(_line(step, spec, answers, reflect) for step in recorded.steps[:steps])
    row = recorded.row
    won = {True: ", a success", False: ", no success"}.get(bool(row["success"]), "") if "success" in row else ""
    end = f"It ended after {int(row['length'])} steps, with a return of {tidy(row['return'])}{won}."
    return EpisodeExample(lines, len(recorded.steps) - len(lines), end)


def _line(step: Mapping[str, Any], spec: EnvSpec, answers: AnswerFormat, reflect: bool) -> str:
    assert spec.text is not None
    seen, known = step["observation"], {name for name, _ in spec.text.observation}
    if isinstance(seen, Mapping) and not known.issuperset(seen):
        other = next(name for name in seen if name not in known)
        raise ConfigError(f"agent.examples_from: there {other!r} was seen, which env={spec.name} does not show")
    chosen = step.get("valid", True)
    thought = {"reflection": step["reflection"]} if reflect and chosen and step.get("reflection") else {}
    done = {"action": answers.shown(_action(step["action"], spec))}
    # What was done without a usable reply is not shown as somebody's choice.
    done = done if chosen else {"no_usable_reply": f"done instead: {said(done['action'])}"}
    return said({"observation": seen, **thought, **done, "reward": tidy(step["reward"])})


def _action(done: Any, spec: EnvSpec) -> Action:
    names = spec.action_names if spec.continuous_actions is None else spec.continuous_action_names
    if spec.continuous_actions is None and done in names:
        return names.index(done)
    if spec.text is not None and spec.text.amount and done in range(spec.n_actions):
        return int(done)
    if spec.continuous_actions is not None and isinstance(done, Mapping) and set(done) == set(names):
        return [round(float(done[name]), 4) for name in names]
    raise ConfigError(f"agent.examples_from: there {done!r} was done, and env={spec.name} takes {', '.join(names)}")
