"""An agent whose work several processes share."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from llmrl.core.processes import ProcessGroup
from llmrl.core.protocols import AgentLoop
from llmrl.core.ranges import PositiveFloat
from llmrl.core.records import PolicyOutput, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec


class BatchedTrainer:
    """Linear in the signal; each process computes its share of the rows."""

    channels = ("vector",)

    def __init__(self, spec: EnvSpec, processes: ProcessGroup) -> None:
        self.processes = processes
        self.layer = torch.nn.Linear(spec.observation["vector"].shape[0], spec.n_actions)
        torch.nn.init.zeros_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    @torch.no_grad()
    def act(
        self, observation: dict[str, torch.Tensor], state: Any = None, generator: Any = None, greedy: bool = False
    ) -> PolicyOutput:
        vector = observation["vector"]
        rows = vector.flatten(0, 1)
        logits = self.processes.gather(self.layer(rows[self.processes.local_slice(len(rows))])).reshape(
            *vector.shape[:2], -1
        )
        probabilities = logits.softmax(-1).flatten(0, 1)
        action = torch.multinomial(probabilities, 1, generator=generator).reshape(vector.shape[:2])
        log_prob = logits.log_softmax(-1).gather(-1, action[..., None]).squeeze(-1)
        return PolicyOutput(action=action, log_prob=log_prob, value=torch.zeros(vector.shape[:2]))

    def values(self, observation: dict[str, torch.Tensor], state: Any = None) -> torch.Tensor:
        return torch.zeros(observation["vector"].shape[:2])


class TogetherAgent:
    """`agent=together`: REINFORCE by the reward of each step."""

    loop: ClassVar[AgentLoop] = "learn"
    learns = True

    def __init__(self, spec: EnvSpec, seeds: Seeds, processes: ProcessGroup, learning_rate: PositiveFloat) -> None:
        self.policy = BatchedTrainer(spec, processes)
        self.adam = torch.optim.Adam(self.policy.layer.parameters(), lr=learning_rate)

    def update(self, rollout: Any, generator: torch.Generator) -> dict[str, float]:
        processes = self.policy.processes
        observation, action, reward = (
            x.flatten(0, 2) for x in (rollout.observation["vector"], rollout.action, rollout.reward)
        )
        shard = processes.local_slice(len(action))
        log_prob = self.policy.layer(observation[shard]).log_softmax(-1).gather(-1, action[shard, None]).squeeze(-1)
        loss = -(log_prob * (reward[shard] - reward.mean())).sum() / len(action)
        self.adam.zero_grad()
        loss.backward()
        processes.all_reduce_gradients(self.policy.layer.parameters())
        loss_ = loss.detach().clone()
        processes.all_reduce([loss_])
        self.adam.step()
        return {"loss": float(loss_)}

    def reset(self) -> None:
        """Nobody asks."""

    def describe(self) -> dict[str, Any]:
        return {"policy": "linear, shared by processes"}

    def state_dict(self) -> State:
        return {"layer": self.policy.layer.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.policy.layer.load_state_dict(state["layer"])
        self.adam.load_state_dict(state["adam"])
