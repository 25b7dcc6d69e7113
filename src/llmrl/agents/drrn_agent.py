"""`agent=drrn`: reads prompts and actions, and learns by Q-learning how good an action is (He et al. 2016)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Interval

from llmrl.algorithms.q_learning import QLearning, QSettings, Transitions
from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.protocols import AgentLoop
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.records import PolicyOutput, State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.networks import categorical
from llmrl.networks.drrn import DRRN
from llmrl.networks.memo import Memo
from llmrl.networks.vocabulary import Vocabulary, padded

MASK = "action_mask"


class DRRNPolicy:
    """Draws actions from softmax(Q / temperature).

    Attributes:
        network: Q of actions in states.
        words: how texts are read.
        actions: the texts of the actions, read.
        reached: what `values` was asked about in the newest rollout (`unchanged`), each the texts [n_envs * n_agents]
            that were read, the legal actions, and whether each text is empty. `Collector` asks about the states that a
            rollout reaches and does not act in.
    """

    def __init__(self, spec: EnvSpec, network: DRRN, words: Vocabulary, channel: str, temperature: float) -> None:
        self.network, self.words, self.temperature = network, words, temperature
        self.channel = channel
        self.channels = (channel, *((MASK,) if MASK in spec.observation else ()))
        self.actions = [words.read(text) for text in spec.continuations(channel)]
        self.reached: list[tuple[list[bytes], np.ndarray | None, np.ndarray]] = []
        self._memo = Memo(self._read)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """As `Memoizing`: a rollout, in which each text is read once."""
        self.reached = []
        with self._memo.unchanged():
            yield

    def act(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        q, _ = self._q(observation)
        mask = observation.get(MASK)
        logits, q = categorical.mask_logits(q / self.temperature, mask), categorical.mask_logits(q, mask)
        action = q.argmax(-1) if greedy else categorical.sample(logits, generator)
        log_prob, _ = categorical.log_prob_entropy(logits, action)
        return PolicyOutput(action=action, log_prob=log_prob, value=q.amax(-1), logits=logits)

    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        """The highest Q, [n_envs, n_agents]."""
        q, texts = self._q(observation)
        mask = observation.get(MASK)
        if self._memo.open:
            empty = np.asarray(observation[self.channel], dtype=object).ravel() == ""
            self.reached.append((texts, None if mask is None else mask.flatten(0, 1).cpu().numpy(), empty))
        return categorical.mask_logits(q, mask).amax(-1)

    @torch.no_grad()
    def probabilities(self, prompts: Sequence[str]) -> torch.Tensor:
        """Of the actions after each prompt, [n, n_actions]. To be asked changes nothing: new words stay unknown."""
        texts = [self.words.read(prompt, learn=False) for prompt in prompts]
        q: torch.Tensor = self.network(padded(texts), padded(self.actions))
        return (q / self.temperature).softmax(-1)

    @torch.no_grad()
    def _q(self, observation: dict[str, Any]) -> tuple[torch.Tensor, list[bytes]]:
        """Q [n_envs, n_agents, n_actions], and the texts that were read."""
        prompts = np.asarray(observation[self.channel], dtype=object)
        texts = [self.words.read(prompt) for prompt in prompts.ravel()]
        [q] = self._memo(texts)
        return q.reshape(*prompts.shape, -1), texts

    def _read(self, texts: Sequence[bytes]) -> tuple[torch.Tensor]:
        """Q of different texts, [n, n_actions]."""
        return (self.network(padded(texts), padded(self.actions)),)


class DRRNAgent:
    """A deep reinforcement relevance network and its replay.

    Args:
        spec: of the environment it plays.
        seeds: initial weights come from its stream `weights`.
        device: torch device.
        text_channel: the text channel it reads.
        units: width of the embedding, the recurrent networks and the hidden layer.
        vocabulary: size of its table of words, two of which stand for padding and unknown words.
        temperature: of the softmax it draws actions from, in units of reward.
        q: hyperparameters of learning.

    Raises:
        ConfigError: an action is several numbers here, or there is no such channel of texts.
    """

    loop: ClassVar[AgentLoop] = "learn"
    learns = True
    reads_texts: ClassVar[bool] = True

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Seeds,
        device: str,
        text_channel: str,
        units: PositiveInt,
        vocabulary: Annotated[int, Interval(ge=3, le=32767)],
        temperature: PositiveFloat,
        q: QSettings,
    ) -> None:
        spec.need_discrete("agent=drrn")
        texts = [name for name, channel in spec.observation.items() if channel.dtype == "object"]
        if text_channel not in texts:
            lacks = f"agent.text_channel={text_channel}: agent=drrn reads texts, and env={spec.name} offers"
            if texts:
                raise ConfigError(f"{lacks} the texts {', '.join(texts)}; use agent.text_channel={texts[0]}")
            raise Incompatible(Misfit.INTERFACE, f"{lacks} no texts; use an environment of texts, e.g. env=babyai_text")
        network = DRRN(vocabulary, units, seeds.torch("weights")).to(device)
        self.policy = DRRNPolicy(spec, network, Vocabulary(vocabulary), text_channel, temperature)
        self._settings = q
        self._original = copy.deepcopy(network.state_dict())
        self._first_words = self.policy.words.state_dict()
        self._learner = QLearning(network, q)

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        transitions = self._transitions(rollout)
        metrics = self._learner.learn(transitions, len(rollout.action), self.policy.actions, generator)
        self.policy.words.keep()
        return {**metrics, "loss/entropy": -float(rollout.log_prob.mean())}

    def adapt(self, spec: EnvSpec) -> None:
        """Play from now on with this spec's actions, however many; words met since the last update are forgotten."""
        spec.need_discrete("agent=drrn")
        self.policy.words.forget()
        self.policy.actions = [self.policy.words.read(text) for text in spec.continuations(self.policy.channel)]

    def reset(self) -> None:
        self.policy.network.load_state_dict(self._original)
        self.policy.words.load_state_dict(self._first_words)
        self._learner = QLearning(self.policy.network, self._settings)

    def describe(self) -> dict[str, Any]:
        n = sum(p.numel() for p in self.policy.network.parameters())
        return {"policy": "deep reinforcement relevance network", "parameters": n, "trainable": n}

    def state_dict(self) -> State:
        return {
            "policy": dict(self.policy.network.state_dict()),
            "words": self.policy.words.state_dict(),
            "learner": self._learner.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.policy.network.load_state_dict(state["policy"])
        self.policy.words.load_state_dict(state["words"])
        self._learner.load_state_dict(state["learner"])

    def _transitions(self, rollout: Rollout) -> Transitions:
        """Return the transitions of a rollout, at most T * n_envs * n_agents, oldest first.

        A step with an empty text decides nothing (another agent's turn). It is no transition of its own: its reward
        belongs to the agent's last decision, which leads to the agent's next one. Decisions whose next one is not in
        the rollout are left out.
        """
        policy, steps = self.policy, len(rollout.action)
        shape = rollout.action.shape
        # The states reached that the next step did not act in; see `Collector`.
        asked = rollout.truncated.any(1)
        asked[-1] = True
        found = dict(zip(asked.nonzero()[:, 0].tolist(), policy.reached[-int(asked.sum()) :], strict=True))
        seen = rollout.observation[policy.channel]
        texts, places = seen.distinct()
        read = [policy.words.read(text) for text in texts]
        prompts = [[read[i] for i in row] for row in places.flatten(1).tolist()]
        after = [*prompts[1:], found[steps - 1][0]]
        legal = None
        if MASK in rollout.observation:
            mask = rollout.observation[MASK].flatten(1, 2).cpu().numpy()
            legal = np.concatenate([mask[1:], found[steps - 1][1][None]]).copy()
        truncated = rollout.truncated[:, :, None].expand(shape).flatten(1).cpu().numpy()
        idle = np.array([text == "" for text in texts])[places.flatten(1).cpu().numpy()]
        idle_after = np.concatenate([idle[1:], found[steps - 1][2][None]])
        for t, (reached, mask, empty) in found.items():
            cut = np.flatnonzero(truncated[t]).tolist()
            after[t] = [reached[i] if i in cut else text for i, text in enumerate(after[t])] if cut else after[t]
            if legal is not None:
                legal[t, cut] = mask[cut]
            idle_after[t, cut] = empty[cut]
        terminal = rollout.terminated[:, :, None].expand(shape).flatten(1).cpu().numpy()
        if not self._settings.bootstrap_truncation:
            terminal = terminal | truncated
        reward = rollout.reward.flatten(1).cpu().numpy().copy()
        complete = ~idle_after | terminal
        for t, i in np.argwhere(~complete & ~truncated)[::-1].tolist():
            if t < steps - 1:
                reward[t, i] += reward[t + 1, i]
                after[t][i], terminal[t, i], complete[t, i] = after[t + 1][i], terminal[t + 1, i], complete[t + 1, i]
                if legal is not None:
                    legal[t, i] = legal[t + 1, i]
        chosen = complete & ~idle
        indices = np.argwhere(chosen).tolist()
        return Transitions(
            prompt=[prompts[t][i] for t, i in indices],
            action=rollout.action.flatten(1).cpu().numpy()[chosen],
            reward=reward[chosen],
            next_prompt=[after[t][i] for t, i in indices],
            terminal=terminal[chosen],
            legal=None if legal is None else legal[chosen],
        )
