"""Agent whose policy is a language model trained by PPO from reward (Carta et al. 2023, arXiv 2302.02662)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from llmrl.agents.llm_ppo.network import KLPenalty, LanguageActorCritic, LanguageNetworkSettings, LanguagePolicy
from llmrl.algorithms.ppo import PPO, PPOSettings
from llmrl.core.errors import CheckpointError, ConfigError
from llmrl.core.model_protocols import Scorer
from llmrl.core.processes import ProcessGroup
from llmrl.core.protocols import AgentLoop
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt
from llmrl.core.records import State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.llms.local.candidate_scorer import LocalScorer
from llmrl.llms.local.loading import check_model_unchanged, copy_weights, folder_fingerprint
from llmrl.llms.local.lora import AdapterSet, Lora, write_adapter
from llmrl.run.artifacts import load_saved_state

Tune = Literal["full", "lora", "heads", "nothing"]
_WEIGHT_SHAPE_OPTIONS = "llm=, llm.model, agent.tune, agent.lora, agent.actions and agent.head_hidden"
"""Options that determine the names and shapes of the trained weights."""


@dataclass(frozen=True, kw_only=True)
class LanguagePPOSettings(LanguageNetworkSettings):
    """Options of `LanguagePPOAgent`; those of the network are inherited. Ranges are in `conf/agent/llm_ppo.yaml`.

    Attributes:
        tune: trained weights: all (`full`), an adapter and the heads (`lora`), only the `heads`, or `nothing`.
        lora: settings of the adapter.
        recompute: whether activations are computed again for the gradient instead of being stored.
        kl_coefficient: weight of the KL divergence from the initial policy (for an adapter, the model without it).
        init_from: run folder whose newest checkpoint contains the initial values of the trained weights, read at every
            start; None: those of the model, and random values of heads and adapters.
        init_from_seed: seed of that run (`own`: of this run; `shared`: 0); unused, because `init_from` names the run.
        ppo: hyperparameters.
    """

    tune: Tune
    lora: Lora
    recompute: bool
    kl_coefficient: NonNegativeFloat
    init_from: str | None
    init_from_seed: Literal["own", "shared"] | NonNegativeInt = "own"
    ppo: PPOSettings


class LanguagePPOAgent:
    """One language model that acts for all agents, with its learner.

    Dropout is never active, so for equal weights, probabilities in update and rollout are equal (in bfloat16 up to
    rounding, because batches contain different texts).

    Args:
        spec: spec of the environment.
        settings: options.
        seeds: seed tree, whose streams `weights` and `adapter` initialize heads and adapter.
        device: torch device.
        scorer: the language model.
        processes: processes that share the computation.
        has_principal: whether a principal governs the agent; if so, its weights can be reset.
        society_index: index of the agent's society.
        member: index of the agent among the members of `agent=mixed`; None: it is not a member.

    Raises:
        ConfigError: options are incompatible, or the initial weights do not fit this agent.
        LLMError: the model cannot be loaded.
        CheckpointError: the initial weights do not exist.
    """

    loop: ClassVar[AgentLoop] = "learn"
    reads_texts: ClassVar[bool] = True
    no_learning_setting = ("tune", "nothing")
    """(option, value): with this value the agent does not learn."""

    def __init__(
        self,
        spec: EnvSpec,
        settings: LanguagePPOSettings,
        seeds: Seeds,
        device: str,
        scorer: Scorer,
        processes: ProcessGroup,
        has_principal: bool,
        society_index: int = 0,
        member: int | None = None,
    ) -> None:
        if not isinstance(scorer, LocalScorer):
            raise ConfigError(
                "agent=llm_ppo needs a local scorer; use llm=local_scorer_seq2seq or llm=local_scorer_causal"
            )
        _check_settings(scorer, settings)
        tune = settings.tune
        if tune == "full" and (society_index or member):
            raise ConfigError(
                "agent.tune=full trains one set of weights, but several societies or members learn separately; use "
                "agent.tune=lora or heads"
            )
        generator = seeds.torch("weights")
        module = scorer.module
        self._adapter_set: AdapterSet | None = None
        name_parts = [f"society_{society_index}"] * has_principal + [f"member_{member}"] * (member is not None)
        self._adapter_name = "_".join(name_parts)
        if tune == "lora":
            self._adapter_set = scorer.get_adapters(settings.lora, seeds.integer("adapter"))
        else:
            module.requires_grad_(tune == "full")
        self._activate_adapter()
        if settings.recompute:
            scorer.recompute_activations()
        network = LanguageActorCritic(spec, scorer, generator, settings, processes)
        network.activate_adapter = self._activate_adapter
        self.policy = LanguagePolicy(spec, network).to(device)
        self.learns = tune != self.no_learning_setting[1]
        self.tune, self.model_label = tune, scorer.label
        self._lora_settings, self._revision = settings.lora, scorer.settings.revision
        self._model_path, self._model_fingerprint = scorer.model, folder_fingerprint(scorer.model, hashes_blocks=True)
        self._trained_parameters = {
            AdapterSet.generic_parameter_name(name, self._adapter_name): p
            for name, p in self.policy.named_parameters()
            if p.requires_grad
        }
        if settings.init_from is not None:
            self._load_initial_weights(Path(settings.init_from))
        self._initial_weights = (
            {n: p.detach().clone() for n, p in self._trained_parameters.items()} if has_principal else None
        )
        # Created before a checkpoint of this run is loaded, so that a resumed run has the same reference policy.
        weight = settings.kl_coefficient
        kl_penalty = KLPenalty(network, weight, trains_adapters=tune == "lora") if weight else None
        self._ppo = PPO(self.policy, settings.ppo, kl_penalty) if self.learns else None

    def _activate_adapter(self) -> None:
        """Make the model use this agent's adapter, whose parameters then require gradients."""
        if self._adapter_set is not None:
            self._adapter_set.activate(self._adapter_name)

    def min_rollout_steps(self, games: int) -> int:
        """Return the minimum number of steps of a rollout, given the number of games."""
        return 1 if self._ppo is None else self._ppo.min_rollout_steps(games)

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Update the policy by PPO.

        The metric `language/tokens` is the number of token positions computed by the model since the last update.
        """
        if self._ppo is None:
            return {}
        metrics = self._ppo.update(rollout, generator)
        network = self.policy.network
        metrics["language/tokens"] = float(sum(network.processes.all_gather_object(network.n_tokens)))
        network.n_tokens = 0
        return metrics

    def adapt(self, spec: EnvSpec) -> None:
        """Use the actions of `spec`, which may have other names, from now on.

        Raises:
            ConfigError: the number of actions does not fit the head.
        """
        self.policy.network.set_actions(spec)

    def reset(self) -> None:
        """Restore the initial weights, which are stored if a principal governs the agent."""
        assert self._initial_weights is not None
        copy_weights(self._initial_weights, self._trained_parameters, "the initial model", _WEIGHT_SHAPE_OPTIONS)
        if self._ppo is not None:
            self._activate_adapter()
            self._ppo.reset()

    def write_adapter(self, folder: Path) -> None:
        """Write the trained adapter to `folder` in the format of peft; do nothing if no adapter is trained."""
        network = self.policy.network
        if self.tune == "lora" and network.processes.is_main:
            assert self._adapter_set is not None
            weights = self._adapter_set.parameters(self._adapter_name)
            write_adapter(network.language, weights, self._lora_settings, folder, self._model_path, self._revision)

    def describe(self) -> dict[str, Any]:
        """Return a description of the policy, of its trained weights (`agent.tune`), and numbers of parameters."""
        parameters = list(self.policy.parameters())
        output_text = "names of actions scored" if self.policy.network.scores_actions else "a head for the actions"
        return {
            "policy": f"{self.model_label}, {output_text}",
            "tuned": self.tune,
            "parameters": sum(p.numel() for p in parameters),
            "trainable": sum(p.numel() for p in parameters if p.requires_grad) if self.learns else 0,
        }

    def state_dict(self) -> State:
        """Return the trained weights and the learner's state; `llm=` determines the rest of the model."""
        learner = None if self._ppo is None else self._ppo.state_dict()
        network = self.policy.network
        return {
            "policy": {name: parameter.detach() for name, parameter in self._trained_parameters.items()},
            "model": self._model_fingerprint,
            "learner": learner,
            "tokens": sum(network.processes.all_gather_object(network.n_tokens)),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore weights and learner; raise ConfigError if the model's files differ or weights do not fit."""
        check_model_unchanged(self._model_path, state.get("model"), self._model_fingerprint)
        copy_weights(state["policy"], self._trained_parameters, "the checkpoint", _WEIGHT_SHAPE_OPTIONS)
        # The stored number is the sum over all processes, so only one process restores it.
        self.policy.network.n_tokens = state["tokens"] if self.policy.network.processes.is_main else 0
        if self._ppo is not None:
            self._ppo.load_state_dict(state["learner"])

    def _load_initial_weights(self, run: Path) -> None:
        """Load the initial weights from the newest checkpoint of another run."""
        try:
            state = load_saved_state(run)[1]
        except CheckpointError as error:
            raise CheckpointError(
                f"agent.init_from={run}: {error}. It is read at every start, also of a resumed or evaluated run, so "
                "keep that folder, or create a link to it"
            ) from error
        weights = state.get("agents", [{}])[-1].get("policy")
        if weights is None:
            raise ConfigError(
                f"agent.init_from={run}: that run has no weights of a policy; use a run of agent=llm_ppo or agent=bc"
            )
        copy_weights(weights, self._trained_parameters, f"agent.init_from={run}", _WEIGHT_SHAPE_OPTIONS)


def _check_settings(scorer: LocalScorer, settings: LanguagePPOSettings) -> None:
    """Raise ConfigError if no trained weight affects the actions, or options are incompatible."""
    tune, actions, lora, kl_coefficient = settings.tune, settings.actions, settings.lora, settings.kl_coefficient
    if scorer.settings.dtype != "float32" and tune == "full":
        raise ConfigError(
            f"agent.tune=full cannot be used with llm.dtype={scorer.settings.dtype}, in which small updates vanish; "
            "use llm.dtype=float32 with agent.precision=bfloat16, or agent.tune=lora"
        )
    if tune == "heads" and actions == "scores":
        raise ConfigError(
            "agent.tune=heads cannot be used with agent.actions=scores, because no head affects the actions; use "
            "agent.actions=head, or agent.tune=lora"
        )
    if tune == "lora" and lora.dropout:
        raise ConfigError(
            f"agent.lora.dropout={lora.dropout:g} must be 0 in agent=llm_ppo, because probabilities of rollout and "
            "update have to agree"
        )
    if kl_coefficient and (actions == "head" or tune in ("heads", "nothing")):
        raise ConfigError(
            f"agent.kl_coefficient={kl_coefficient:g} needs agent.actions=scores and agent.tune=full or lora, got "
            f"agent.actions={actions} and agent.tune={tune}; set it to 0 otherwise"
        )
