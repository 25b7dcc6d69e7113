"""Speed of BabyAI-Text: vectorized games compared with sequential games in MiniGrid.

    python benchmarks/babyai_text.py          # frames, then resets
    python benchmarks/babyai_text.py --bot    # 200 missions of each kind, played by the bot of MiniGrid

Measurements alternate. Both implementations play random actions, reset finished games and build the published prompt of
every game. The sequential implementation works like the published environment: MiniGrid computes an observation, and
the view is computed again for the sentences, by a loop over its cells. Reports CPU seconds of the process, with one
thread.
"""

from __future__ import annotations

import argparse
import time
from collections import deque

import gymnasium
import numpy as np

import llmrl.envs.babyai.levels  # noqa: F401
from llmrl.api.environments import make_env
from llmrl.envs.babyai.levels import MISSION_KINDS

GAMES = 32
TRAIN, TEST = "BabyAI-MixedTrainLocal-v0", "BabyAI-MixedTestLocal-v0"
LEVELS = ("BabyAI-GoToRedBall-v0", "BabyAI-GoToLocal-v0", TRAIN, TEST)
ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
TYPES = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava")
STATES = ("open", "closed", "locked")


def time_batched_frames(level: str, steps: int) -> tuple[float, int]:
    """Return CPU seconds of `steps` steps of `GAMES` vectorized games, and the number of resets during these steps."""
    env = make_env("babyai_text", level=level, n_envs=GAMES)
    env.provide(["prompt"])
    rng, n_resets = np.random.default_rng(0), 0
    env.reset(seed=0)
    start = time.process_time()
    for _ in range(steps):
        step = env.step(rng.integers(len(ACTIONS), size=(GAMES, 1)))
        done = step.terminated | step.truncated
        if done.any():
            env.reset(mask=done)
            n_resets += int(done.sum())
    return time.process_time() - start, n_resets


class SequentialGame:
    """Game of MiniGrid with a description that is computed cell by cell."""

    def __init__(self, level: str) -> None:
        arguments = {"sampling": "rejection"} if level in (TRAIN, TEST) else {}
        self.env = gymnasium.make(level, disable_env_checker=True, **arguments).unwrapped
        self.observations: deque[list[str]] = deque(maxlen=3)
        self.actions: deque[str] = deque(maxlen=2)

    def reset(self, seed: int) -> str:
        self.observations.clear()
        self.actions.clear()
        self.env.reset(seed=seed)
        return self.prompt()

    def step(self, action: int) -> bool:
        _, _, terminated, truncated, _ = self.env.step(action)
        self.actions.append(ACTIONS[action])
        self.prompt()
        return terminated or truncated

    def prompt(self) -> str:
        self.observations.append(self.describe())
        prompt = f"Possible action of the agent: {', '.join(ACTIONS)} \n Goal of the agent: {self.env.mission}"
        for i, sentences in enumerate(self.observations):
            prompt += f" \n Observation {i}: "
            for sentence in sentences:
                prompt += f"{sentence}, "
            prompt += f"\n Action {i}: "
            if i < len(self.actions):
                prompt += self.actions[i]
        return prompt

    def describe(self) -> list[str]:
        image = self.env.gen_obs()["image"]
        sentences = []
        if self.env.carrying is not None:
            sentences.append(f"You carry a {self.env.carrying.color} {self.env.carrying.type}")
        for direction, line in {
            "forward": [(3, y) for y in range(5, -1, -1)],
            "left": [(x, 6) for x in (2, 1, 0)],
            "right": [(x, 6) for x in (4, 5, 6)],
        }.items():
            for n, (x, y) in enumerate(line, start=1):
                if image[x, y, 0] > 1:
                    if image[x, y, 0] == 2:
                        sentences.append(f"You see a wall {n} step{'s' * (n > 1)} {direction}")
                    break
        for x in range(7):
            for y in range(7):
                kind, color, state = (int(code) for code in image[x, y])
                if kind < 3 or (x, y) == (3, 6):
                    continue
                name = f"{COLORS[color]} {TYPES[kind]}"
                if TYPES[kind] == "door":
                    name = f"{STATES[state]} {name}"
                side_distance, forward_distance = abs(x - 3), 6 - y
                distances = []
                if side_distance:
                    distances.append(f"{side_distance} step{'s' * (side_distance > 1)} {'right' if x > 3 else 'left'}")
                if forward_distance:
                    distances.append(f"{forward_distance} step{'s' * (forward_distance > 1)} forward")
                sentences.append(f"You see a {name} {' and '.join(distances)}")
        return sentences


def time_single_frames(level: str, steps: int, reset_rate: float) -> float:
    """Return CPU seconds of `steps` frames of a sequential game.

    Args:
        level: environment ID.
        steps: number of frames.
        reset_rate: mean number of resets per frame, as in the vectorized games.
    """
    import contextlib
    import io

    game, rng, pending_resets, seed = SequentialGame(level), np.random.default_rng(0), 0.0, 0
    with contextlib.redirect_stdout(io.StringIO()):
        game.reset(seed)
        start = time.process_time()
        for _ in range(steps):
            pending_resets += reset_rate
            if game.step(int(rng.integers(len(ACTIONS)))) or pending_resets >= 1:
                seed, pending_resets = seed + 1, pending_resets - 1
                game.reset(seed)
        return time.process_time() - start


def compare_frames(rounds: int) -> None:
    """Print the duration of frames by level."""
    print(f"Frames: step, sentences, prompt and resets; {GAMES} vectorized games compared with sequential games\n")
    print("| level | sequential, µs per frame | vectorized, µs per frame | ratio |\n|---|---|---|---|")
    for level in LEVELS:
        batched_times, single_times = [], []
        for _ in range(rounds):
            seconds, n_resets = time_batched_frames(level, 200)
            batched_times.append(seconds / 200 / GAMES * 1e6)
            single_times.append(time_single_frames(level, 400, n_resets / 200 / GAMES) / 400 * 1e6)
        single, batched = float(np.median(single_times)), float(np.median(batched_times))
        print(f"| {level} | {single:,.0f} | {batched:,.1f} | {single / batched:.1f} |")


def compare_resets(n: int) -> None:
    """Print the duration of `n` resets by level and kind, for both sampling methods."""
    print(f"\nResets, ms: mean of {n} (maximum)\n\n| level | kind | rejection | direct |\n|---|---|---|---|")
    levels_and_kinds = [(level, kind) for level in (TRAIN, TEST) for kind in MISSION_KINDS] + [
        ("BabyAI-GoToLocalS8N16-v0", "goto")
    ]
    for level, kind in levels_and_kinds:
        cells = []
        for sampling in ("rejection", "direct"):
            env = gymnasium.make(level, kind=kind, sampling=sampling).unwrapped
            env.gen_obs = dict
            seconds = []
            for seed in range(n):
                start = time.process_time()
                env.reset(seed=seed)
                seconds.append((time.process_time() - start) * 1e3)
            cells.append(f"{np.mean(seconds):.2f} ({max(seconds):.1f})")
        print(f"| {level} | {kind} | {' | '.join(cells)} |")


def evaluate_bot(n: int) -> None:
    """Print the performance of the bot of MiniGrid in `n` episodes of each level and kind."""
    print(f"\nBot of MiniGrid, {n} episodes of each kind\n\n| level | kind | success | mean reward | mean length |")
    print("|---|---|---|---|---|")
    for level in (TRAIN, TEST):
        for kind in MISSION_KINDS:
            env = make_env("babyai_text", level=level, kind=kind, n_envs=n)
            env.provide(["expert"])
            observation = env.reset(seed=0)
            successes, base, length = np.zeros(n), np.zeros(n), np.zeros(n)
            is_active = np.ones(n, dtype=bool)
            while is_active.any():
                step = env.step(np.maximum(observation["expert"], 0))
                successes, base, length = (
                    successes + step.info["success"],
                    base + step.base_reward[:, 0],
                    length + is_active,
                )
                is_active, observation = ~(step.terminated | step.truncated), step.observation
            print(f"| {level} | {kind} | {successes.mean():.3f} | {base.mean():.3f} | {length.mean():.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bot", action="store_true", help="evaluate the bot of MiniGrid")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of frame measurements, of which the median is printed"
    )
    arguments = parser.parse_args()
    if arguments.bot:
        evaluate_bot(200)
    else:
        compare_frames(arguments.rounds)
        compare_resets(60)


if __name__ == "__main__":
    main()
