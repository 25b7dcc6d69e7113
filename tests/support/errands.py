"""Toy text game with two kinds of tasks, and an agent whose policy depends on the prompt."""

from typing import Any

import numpy as np
import torch

from llmrl.core.errors import ConfigError
from llmrl.core.records import PolicyOutput, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec

OBJECTS = ("key", "ball", "box")
KINDS = ("fetch", "wait")
ACTIONS = {"plain": ("take key", "take ball", "take box"), "more": ("take key", "take ball", "take box", "sing")}


class Errands:
    """Game in which the agent takes the object that the goal names.

    In games of the kind `fetch` the goal is visible from the start, in those of the kind `wait` from the second step.
    Taking the object terminates the episode with a reward of 20; after `horizon` steps it is truncated.
    """

    def __init__(
        self,
        seeds: Seeds,
        n_envs: int = 4,
        horizon: int = 5,
        kind: str = "both",
        replace: dict[str, str] = {},  # noqa: B006  (configs contain a mapping)
        actions: str = "plain",
    ) -> None:
        if kind not in (*KINDS, "both"):
            raise ConfigError(f"env.kind={kind}: there is {', '.join(KINDS)}, both")
        names = ACTIONS[actions]
        channels = {"prompt": Channel((), "object"), "vector": Channel((3,), "float32", 0, 1)}
        metrics = {"success": "sum"}
        self.spec = EnvSpec("errands", n_envs, 1, channels, len(names), names, horizon, metrics=metrics)
        self.kind, self.replace, self.provided = kind, replace, set()
        self._rng = seeds.numpy("errands")
        self._target, self._kind, self._time = (np.zeros(n_envs, dtype=np.int64) for _ in range(3))

    def provide(self, channels):
        self.provided |= set(channels)

    def reset(self, mask=None, seed=None):
        if seed is not None:
            self._rng = Seeds(seed).numpy("errands")
        resets = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask)
        objects, kinds = (self._rng.integers(n, size=self.spec.n_envs) for n in (3, 2))
        if self.kind != "both":
            kinds = np.full_like(kinds, KINDS.index(self.kind))
        self._target[resets], self._kind[resets], self._time[resets] = objects[resets], kinds[resets], 0
        return self.observe()

    def step(self, action):
        self._time += 1
        choice = np.asarray(action)[:, 0]
        success = ((choice == self._target) & (choice < 3)).astype(np.float32)
        done = success > 0
        late = ~done & (self._time >= self.spec.horizon)
        return Step(self.observe(), success[:, None] * 20, success[:, None], done, late, {"success": success})

    @property
    def kinds(self):
        return [KINDS[k] for k in self._kind]

    @property
    def missions(self):
        return [f"take the {OBJECTS[t]}" for t in self._target]

    def prompt(self, goal, observations, actions):
        summary = " ".join(f"Seen: {', '.join(names)}." for names in observations)
        text = f"Goal: {goal}. {summary} Done: {', '.join(actions)}"
        for old, new in self.replace.items():
            text = text.replace(old, new)
        return text

    def observe(self):
        texts = np.empty((self.spec.n_envs, 1), dtype=object)
        for i, (target, kind, time) in enumerate(zip(self._target, self._kind, self._time, strict=True)):
            goal = "nothing yet" if kind == 1 and time == 0 else f"take the {OBJECTS[target]}"
            texts[i, 0] = self.prompt(goal, [[f"{time} steps"]], [])
        return {"prompt": texts, "vector": np.eye(3, dtype=np.float32)[self._target][:, None]}

    def share_random_numbers(self, n_groups):
        """Do nothing: games never share random numbers."""

    def state_dict(self):
        arrays = {"thing": self._target, "kind": self._kind, "time": self._time}
        return {"rng": self._rng.bit_generator.state, **{name: x.copy() for name, x in arrays.items()}}

    def load_state_dict(self, state):
        self._rng.bit_generator.state = state["rng"]
        self._target, self._kind, self._time = (np.array(state[name]) for name in ("thing", "kind", "time"))

    def close(self):
        """Do nothing: there are no resources to release."""


class Reader:
    """Policy that prefers the object named in the prompt, with a logit of `skill`."""

    def __init__(self, spec: EnvSpec, skill: float) -> None:
        self.channels: tuple[str, ...] = ("prompt",)
        self.skill, self.n_actions = torch.tensor(float(skill)), spec.n_actions

    def logits(self, prompts):
        probabilities = [[float(f"take the {name}" in prompt) for name in OBJECTS] for prompt in prompts]
        padded = torch.zeros(len(prompts), self.n_actions)
        padded[:, :3] = torch.tensor(probabilities).reshape(-1, 3) * self.skill
        return padded

    def probabilities(self, prompts):
        return self.logits(prompts).softmax(-1)

    def act(self, observation, state=None, generator=None, greedy=False) -> PolicyOutput:
        texts = observation["prompt"]
        logits = self.logits(texts.ravel().tolist()).reshape(*texts.shape, -1).log_softmax(-1)
        draws = torch.multinomial(logits.exp().flatten(0, 1), 1, generator=generator).reshape(texts.shape)
        action = logits.argmax(-1) if greedy else draws
        log_prob = logits.gather(-1, action[..., None])[..., 0]
        return PolicyOutput(action, log_prob, torch.full(texts.shape, 0.5), logits=logits)

    def values(self, observation, state=None):
        return torch.full(observation["prompt"].shape, 0.5)


class ReaderAgent:
    """Agent whose updates increase the skill of its policy by 0.5.

    Args:
        learns: whether the agent is trained.
        adapts: whether the agent has the method `adapt`.
    """

    loop = "learn"

    def __init__(self, spec: EnvSpec, skill: float = 5.0, learns: bool = True, adapts: bool = False) -> None:
        self.policy, self.learns = Reader(spec, skill), learns
        if adapts:
            self.adapt = self._adapt

    def _adapt(self, spec: EnvSpec) -> None:
        self.policy.n_actions = spec.n_actions

    def update(self, rollout, generator) -> dict[str, float]:
        self.policy.skill = self.policy.skill + 0.5
        return {"loss/none": 0.0}

    def reset(self):
        """Do nothing: the agent has no state to reset."""

    def describe(self) -> dict[str, Any]:
        return {"policy": "reads"}

    def state_dict(self):
        return {"skill": self.policy.skill}

    def load_state_dict(self, state):
        self.policy.skill = state["skill"]
