"""`agent=llm_ppo`: a language model as policy, trained by PPO from reward (Carta et al. 2023, arXiv 2302.02662)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from llmrl.agents.llm_ppo.network import Actions, Activation, LanguageActorCritic, LanguageNetworkSettings, Precision
from llmrl.agents.llm_ppo.policy import LanguagePolicy
from llmrl.agents.llm_ppo.reference_kl import ReferenceKL
from llmrl.algorithms.ppo import PPO, PPOSettings
from llmrl.algorithms.sharded import divided as divided_like
from llmrl.algorithms.sharded import gathered
from llmrl.core.errors import CheckpointError, ConfigError
from llmrl.core.model_protocols import Scorer
from llmrl.core.processes import ProcessGroup
from llmrl.core.protocols import AgentLoop
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.llms.local.candidate_scorer import LocalScorer
from llmrl.llms.local.fingerprint import folder_fingerprint
from llmrl.llms.local.lora import Lora
from llmrl.run.artifacts import saved_state

Tune = Literal["full", "lora", "heads", "nothing"]


class LanguagePPOAgent:
    """One language model that plays all agents, and its learner.

    Dropout is never active: a probability in an update is that of the rollout while the weights are the same (float32;
    in bfloat16 up to its rounding, as the two read other texts at once).

    Args:
        spec: of the environment it plays.
        seeds: initial weights of heads and adapters come from its stream `weights`.
        device: torch device.
        scorer: the language model.
        processes: that share its work.
        has_principal: whether a principal governs the agent.
        text_channel: text channel that it reads.
        actions, temperature, head_hidden, head_activation, precision, piece_tokens: see
            `LanguageNetworkSettings`.
        tune: what is trained: all weights, an adapter (`lora`), the heads alone, or nothing: then it only plays.
        lora: the adapter.
        recompute: compute activations again instead of keeping them for the gradient.
        kl_coefficient: weight of the divergence from the policy before training, which of an adapter is the model
            without one; 0: none.
        divided: each of several processes holds a part of the weights only, for models larger than a GPU (FSDP);
            without effect in one process.
        init_from: run folder whose newest checkpoint gives the first weights of what is trained, read at every start;
            None: as the model is.
        init_from_seed: which seed's run that is; `init_from` names it already, so nothing depends on it here.
        ppo: hyperparameters.

    Raises:
        ConfigError: the parts do not fit each other, or the weights to start from do not fit this agent.
        LLMError: the model cannot be loaded.
        CheckpointError: there are no weights to start from.
    """

    loop: ClassVar[AgentLoop] = "learn"
    reads_texts: ClassVar[bool] = True
    plays_if = ("tune", "nothing")
    """Option, and its value with which the agent only plays."""

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Seeds,
        device: str,
        scorer: Scorer,
        processes: ProcessGroup,
        has_principal: bool,
        text_channel: str,
        actions: Actions,
        temperature: PositiveFloat,
        tune: Tune,
        lora: Lora,
        head_hidden: list[PositiveInt],
        head_activation: Activation,
        precision: Precision,
        recompute: bool,
        piece_tokens: PositiveInt,
        kl_coefficient: NonNegativeFloat,
        divided: bool,
        init_from: str | None,
        ppo: PPOSettings,
        init_from_seed: Literal["own", "shared"] | NonNegativeInt = "own",
    ) -> None:
        if not isinstance(scorer, LocalScorer):
            raise ConfigError("agent=llm_ppo trains a model of this process: use llm=local_scorer_seq2seq or _causal")
        if has_principal:
            raise ConfigError("agent=llm_ppo plays alone: no principal governs it; use principal=none or agent=ppo")
        _check_training(scorer, actions, tune, lora, kl_coefficient, divided)
        generator = seeds.torch("weights")
        module = scorer.module
        if tune == "lora":
            lora.inject(module, seeds.integer("adapter"))
            module.to(device)
        else:
            module.requires_grad_(tune == "full")
        if recompute:
            scorer.recompute_activations()
        settings = LanguageNetworkSettings(
            text_channel, actions, temperature, head_hidden, head_activation, precision, piece_tokens
        )
        network = LanguageActorCritic(spec, scorer, generator, settings, processes)
        self.policy = LanguagePolicy(spec, network).to(device)
        if divided and processes.world_size > 1:
            network.divide()
        self.learns = tune != self.plays_if[1]
        self.tune, self.label = tune, scorer.label
        self._model, self._files = scorer.model, folder_fingerprint(scorer.model, sampled=True)
        self._trained = {name for name, p in self.policy.named_parameters() if p.requires_grad}
        if init_from is not None:
            self._start_from(Path(init_from))
        # Before a checkpoint of this run is loaded: an attempt that goes on from one has the same anchor.
        anchor = ReferenceKL(network, kl_coefficient, adapters=tune == "lora") if kl_coefficient else None
        self._ppo = PPO(self.policy, ppo, anchor) if self.learns else None

    def min_rollout_steps(self, games: int) -> int:
        return 1 if self._ppo is None else self._ppo.min_rollout_steps(games)

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """One update by PPO; `language/tokens`: positions the model computed since the last one."""
        if self._ppo is None:
            return {}
        metrics = self._ppo.update(rollout, generator)
        network = self.policy.network
        metrics["language/tokens"] = float(sum(network.processes.all_gather_object(network.tokens)))
        network.tokens = 0
        return metrics

    def adapt(self, spec: EnvSpec) -> None:
        """Play an environment whose actions have other names from now on.

        Raises:
            ConfigError: a head has no output for one of them.
        """
        self.policy.network.name_actions(spec)

    def reset(self) -> None:
        """Go back to the original weights.

        Raises:
            ConfigError: nobody kept them: only a principal would ask, and none governs this agent.
        """
        raise ConfigError("agent=llm_ppo keeps no copy of its first weights to go back to")

    def describe(self) -> dict[str, Any]:
        parameters = list(self.policy.parameters())
        what = "names of actions scored" if self.policy.network.scoring else "a head for the actions"
        return {
            "policy": f"{self.label}, {what}",
            "tuned": self.tune,
            "parameters": sum(p.numel() for p in parameters),
            "trainable": sum(p.numel() for p in parameters if p.requires_grad) if self.learns else 0,
        }

    def state_dict(self) -> State:
        """What is trained; the rest of the model is what `llm=` loads or draws."""
        learner = None if self._ppo is None else self._ppo.state_dict()
        network = self.policy.network
        return {
            "policy": self._whole(),
            "model": self._files,
            "learner": learner,
            "tokens": sum(network.processes.all_gather_object(network.tokens)),
        }

    def load_state_dict(self, state: State) -> None:
        made_with = state.get("model")  # not known of hub names
        if None not in (made_with, self._files) and made_with != self._files:
            raise ConfigError(
                f"llm.model={self._model} has other files than when this run was made: put the old ones back, or "
                "start the run anew with resume=false (rerun=true if it is finished)"
            )
        self._load(state["policy"], "the checkpoint")
        # They are of all processes together, which add up what each of them has.
        self.policy.network.tokens = state["tokens"] if self.policy.network.processes.is_main else 0
        if self._ppo is not None:
            self._ppo.load_state_dict(state["learner"])

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in self.policy.named_parameters() if name in self._trained}

    def _whole(self) -> dict[str, torch.Tensor]:
        whole: dict[str, torch.Tensor] = gathered(self._weights())
        return whole

    def _load(self, saved: dict[str, torch.Tensor], source: str) -> None:
        mine = self._weights()
        wrong = sorted(set(mine) ^ set(saved)) or [n for n, x in saved.items() if x.shape != mine[n].shape]
        if wrong:
            raise ConfigError(
                f"{source}: its weights do not fit this agent (first difference: {wrong[0]}); use the same llm=, "
                "llm.model, agent.tune, agent.lora, agent.actions and agent.head_hidden"
            )
        with torch.no_grad():
            for name, x in divided_like(saved, mine).items():
                mine[name].copy_(x)

    def _start_from(self, run: Path) -> None:
        try:
            state = saved_state(run)[1]
        except CheckpointError as error:
            raise CheckpointError(
                f"agent.init_from={run}: {error}. It is read at every start, also of a run that goes on or is "
                "evaluated: keep that folder where it is, or put a link there"
            ) from error
        saved = state.get("agents", [{}])[-1].get("policy")
        if saved is None:
            raise ConfigError(f"agent.init_from={run}: that run's agent has no weights to start from")
        self._load(saved, f"agent.init_from={run}")


def _check_training(
    scorer: LocalScorer, actions: Actions, tune: Tune, lora: Lora, kl_coefficient: float, divided: bool
) -> None:
    """Raises ConfigError if nothing would be learned, or not what was asked for."""
    if scorer.four_bit and tune == "full":
        raise ConfigError("weights in four bits cannot be trained: use agent.tune=lora, or llm.four_bit=false")
    if scorer.dtype != "float32" and tune == "full":
        raise ConfigError(
            f"agent.tune=full loses its small steps in weights of llm.dtype={scorer.dtype}: use llm.dtype=float32 with "
            "agent.precision=bfloat16, or agent.tune=lora"
        )
    if tune == "heads" and actions == "scores":
        raise ConfigError(
            "agent.tune=heads trains layers of its own, and with agent.actions=scores none of them acts: use "
            "agent.actions=head, or agent.tune=lora"
        )
    if tune == "lora" and lora.dropout:
        raise ConfigError(
            f"agent.lora.dropout={lora.dropout:g}: dropout is never active in agent=llm_ppo, as probabilities of "
            "rollout and update have to agree; use 0"
        )
    if kl_coefficient and (actions == "head" or tune in ("heads", "nothing")):
        raise ConfigError(
            "agent.kl_coefficient holds a model to the scores it gave before training, and there is nothing to "
            "hold: it needs agent.actions=scores and agent.tune=full or lora"
        )
    if divided and (scorer.four_bit or (kl_coefficient and tune == "full")):
        raise ConfigError(
            "agent.divided=true divides weights that are whole numbers of bytes, and keeps no copy of them: use "
            "llm.four_bit=false, and agent.tune=lora with agent.kl_coefficient"
        )
