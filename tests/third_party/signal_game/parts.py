"""An agent, a principal and a teacher that only use llmrl's protocols."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from llmrl.agents.random_agent import RandomPolicy
from llmrl.core.model_protocols import Scorer
from llmrl.core.protocols import AgentLoop
from llmrl.core.ranges import NonNegativeFloat
from llmrl.core.records import Outcome, PolicyOutput, State
from llmrl.core.spaces import EnvSpec, ParameterSpace


class Echo:
    """Names what it sees: the optimum of the signal game."""

    channels = ("vector",)

    def act(
        self, observation: dict[str, torch.Tensor], state: Any = None, generator: Any = None, greedy: bool = False
    ) -> PolicyOutput:
        return PolicyOutput(observation["vector"].argmax(-1))

    def values(self, observation: dict[str, torch.Tensor], state: Any = None) -> torch.Tensor:
        return observation["vector"].sum(-1)


class Reader:
    """Reads the signal out to a language model and samples one of the names by how likely it finds them."""

    channels = ("vector",)

    def __init__(self, scorer: Scorer, names: tuple[str, ...]) -> None:
        self.scorer, self.names = scorer, names

    def act(
        self, observation: dict[str, torch.Tensor], state: Any = None, generator: Any = None, greedy: bool = False
    ) -> PolicyOutput:
        signal = observation["vector"].argmax(-1)
        prompts = [f"The signal is {self.names[i]}. The signal is" for i in signal.flatten().tolist()]
        with torch.no_grad():
            scores = self.scorer.score(prompts, [f" {name}" for name in self.names])
        return PolicyOutput(torch.multinomial(scores.softmax(-1), 1, generator=generator).reshape(signal.shape))

    def values(self, observation: dict[str, torch.Tensor], state: Any = None) -> torch.Tensor:
        return torch.zeros(observation["vector"].shape[:-1])


class EchoAgent:
    """`agent=echo`."""

    loop: ClassVar[AgentLoop] = "play"
    learns = False
    policy: Any

    def __init__(self) -> None:
        self.policy = Echo()

    def update(self, rollout: Any, generator: torch.Generator) -> dict[str, float]:
        return {}

    def reset(self) -> None:
        """Nothing to reset."""

    def describe(self) -> dict[str, Any]:
        return {"policy": "echo"}

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to load."""


class ReaderAgent(EchoAgent):
    """`agent=reader`: asks for a model that scores texts."""

    def __init__(self, scorer: Scorer, spec: EnvSpec) -> None:
        self.policy = Reader(scorer, spec.action_names)


class Halving:
    """`principal=halving`: starts at the upper bounds and halves."""

    parallel = False

    def __init__(self, space: ParameterSpace) -> None:
        self.vector = space.high * 2

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        self.vector = self.vector / 2
        return self.vector[None]

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        return {"principal/halved_to": float(self.vector[0])}

    def state_dict(self) -> State:
        return {"vector": self.vector}

    def load_state_dict(self, state: State) -> None:
        self.vector = np.array(state["vector"])


class AlwaysZero:
    """`teacher=always_zero`: pulls the student to action 0 by cross-entropy."""

    channels = ()
    policy = None

    def __init__(self, weight: NonNegativeFloat) -> None:
        self.weight = weight

    def loss(self, minibatch: dict[str, torch.Tensor], logits: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        loss = -logits.log_softmax(-1)[:, 0].mean()
        return self.weight * loss, {"teacher/loss": loss.detach()}

    def advise(self, rollout: Any) -> dict[str, torch.Tensor]:
        return {}

    def metrics(self) -> dict[str, float]:
        return {"teacher/weight": self.weight}

    def reset(self) -> None:
        """Do nothing, since the policy has no memory."""

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to load."""


class FaultyPolicy(RandomPolicy):
    """Random, and in trouble at every action as long as the file `until` does not exist."""

    def __init__(self, spec: EnvSpec, trouble: str, until: Path) -> None:
        super().__init__(spec)
        self.trouble, self.until = trouble, until

    def act(
        self, observation: dict[str, torch.Tensor], state: Any = None, generator: Any = None, greedy: bool = False
    ) -> PolicyOutput:
        if self.trouble != "none" and not self.until.exists():
            if self.trouble == "raise":
                raise ZeroDivisionError("made to fail")
            if self.trouble == "shout":
                raise ZeroDivisionError("A" * 200_000)
            if self.trouble == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.1)
        return super().act(observation, state, generator, greedy)


class TroubledAgent(EchoAgent):
    """`agent=troubled`: `trouble` is none, raise, shout, kill or slow."""

    def __init__(self, spec: EnvSpec, trouble: Literal["none", "raise", "shout", "kill", "slow"], until: str) -> None:
        self.policy = FaultyPolicy(spec, trouble, Path(until))
