"""Principal that chooses the values of a mechanism with a language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.records import PrincipalBriefing
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.llms.prompts import Prompt, PromptFamily
from llmrl.llms.reading.vector_parser import VectorParser, VectorQuestion
from llmrl.llms.structured import json_schema
from llmrl.principals.history import MIN_VALUES_FOR_ERROR, Record
from llmrl.principals.llm_principal import LLMPrincipal, LLMSettings

PROMPT_FAMILY = "principal"
PROMPTS_DIR = Path(__file__).with_name("prompts")
MAX_LISTED_REPEATS = 30
"""Maximum number of repeatedly measured vectors that a prompt lists."""


class LLMMechanismPrincipal(LLMPrincipal):
    """Principal whose prompts describe the game, the mechanism's parameters, the payoff and earlier proposals.

    The method is the LLM principal of "Large Legislative Models" (arXiv 2410.08345). Its prompts were not released, so
    these are different.

    Args:
        spec: specification of an environment with a mechanism.
        llm: the chat model.
        settings: options of prompts and replies; `prompt` is the name of a prompt in `prompts/` or `prompt_folder`;
            None: the prompt with the name of the environment, if there is one, else `generic`.
        prompt_folder: folder of user-defined prompts; None: only the shipped prompts.

    Raises:
        ConfigError: the environment has no mechanism, or the prompt does not exist.
    """

    purpose = PROMPT_FAMILY

    def __init__(self, spec: EnvSpec, llm: ChatModel, settings: LLMSettings, prompt_folder: Path | None = None) -> None:
        self.prompts = PromptFamily(PROMPT_FAMILY, PROMPTS_DIR, prompt_folder)
        self.prompt = self._choose_prompt(spec, settings.prompt)
        self.reply_model = create_reply_model(spec.proposal_space)
        self.briefing: PrincipalBriefing | None = None
        super().__init__(spec, spec.proposal_space, llm, settings)

    def brief(self, briefing: PrincipalBriefing) -> None:
        """Store the briefing, which prompts contain."""
        self.briefing = briefing

    def make_reply_schema(self) -> dict[str, Any] | None:
        return json_schema(self.reply_model)

    def render(
        self, context: str | None, proposal_number: int, n_proposals: int, records: list[Record], selection: str | None
    ) -> Prompt:
        spec, history, observations, briefing = self.spec, self.history, self.settings.observations, self.briefing
        noise = history.payoff_noise
        if noise is None and briefing is not None and history.pooled:
            noise = briefing.noise
        repeated_records = history.pool_repeated(self.history_settings.history)
        return self.prompts.render(
            self.prompt,
            name=spec.name,
            n_agents=spec.n_agents,
            horizon=spec.horizon,
            actions=spec.action_names,
            objective=spec.objective.name,
            payoff=spec.objective.format_payoff(spec.n_agents),
            spending_cost=spec.spending_cost,
            facts=spec.facts,
            mechanism=self.space.name,
            parameters=self.space.parameters,
            contexts=spec.contexts,
            context=context,
            numbers_seen="mechanism" in spec.observation and (briefing is None or briefing.observes_mechanism),
            briefing=briefing,
            repeats=self.settings.duplicates == "accept",
            generation=history.n_generations + 1,
            proposal=proposal_number,
            proposals=n_proposals,
            made=len(history.records),
            made_here=len(history.list_records_in_context(context)),
            history=[self._format_record(record) for record in records],
            repeated=[
                self._format_record(record, noise)
                for record in history.trim(repeated_records, "best", min(len(repeated_records), MAX_LISTED_REPEATS))
            ],
            best=None if (best := history.pool_best_record(context)) is None else self._format_record(best, noise),
            measures=history.describe_measures() if observations else [],
            selection=selection,
            step_size=self.settings.step_size,
            optimum=self.settings.optimum,
        )

    def make_parser(self, context: str | None = None, proposal_number: int | None = None) -> VectorParser:
        return VectorParser(
            self.space.names,
            [(p.low, p.high) for p in self.space.parameters],
            VectorQuestion(
                turn=self.history.n_generations + 1,
                proposal=proposal_number,
                context=context,
                contexts=self.spec.contexts,
                history=[record["vector"] for record in self.history.records],
            ),
        )

    def render_repair_prompt(self, reason: str) -> Prompt:
        return self.prompts.render("_repair", fault=reason, parameters=self.space.parameters)

    def _format_record(self, record: Record, noise: float | None = None) -> Record:
        """Return the fields of a record for the history template.

        Args:
            record: record of one or several measurements of a vector.
            noise: standard deviation of payoffs of the same vector, which gives `mean_error`; None: unknown, or not to
                be shown.
        """
        # If the payoff is a sum over agents, the range of the agents' returns replaces the list of all returns.
        is_additive, returns = self.spec.objective.step is not None, record["returns"]
        # The standard error of a measurement is over societies if there are several, else over episodes.
        n_values = record["units"] if record["units"] > 1 else record["episodes"]
        fields = {
            **record,
            "values": list(zip(self.space.names, record["vector"], strict=True)),
            "curves": list(record["curves"].items()),
            # Zeros are omitted to shorten prompts, because most summaries are 0.
            "summaries": [(name, value) for name, value in record["summaries"].items() if value],
            "standard_error": record["standard_error"] if n_values >= MIN_VALUES_FOR_ERROR else None,
            "mean_error": None if noise is None else noise / len(record["measured"]) ** 0.5,
            "usual": self.briefing is not None and record["episodes"] == self.briefing.validate_episodes,
            "range": is_additive,
            "returns": [min(returns), max(returns)] if is_additive and returns else returns,
            "note": record.get("note", ""),
        }
        return fields if self.settings.observations else {**fields, "curves": [], "summaries": [], "returns": []}

    def _choose_prompt(self, spec: EnvSpec, prompt: str | None) -> str:
        available = self.prompts.names
        if prompt is None:
            return spec.name if spec.name in available else "generic"
        if prompt not in available:
            raise ConfigError(
                f"principal.prompt={prompt} does not exist; use {', '.join(available)}, or null for that of the "
                "environment"
            )
        return prompt


def create_reply_model(mechanism: ParameterSpace) -> type[BaseModel]:
    """Return the model of a reply: first `reasoning`, so that it can influence the decision, then numbers by name.

    The schema has no bounds, because some providers reject schemas with bounds; the parameter space checks them.
    """
    if "reasoning" in mechanism.names:
        raise ConfigError(
            f"{mechanism.name}: the parameter name 'reasoning' is reserved by principal=llm; rename the parameter"
        )
    # Parameter names may not be Python identifiers, so they are aliases of fields.
    numbers: dict[str, Any] = {
        f"number_{i}": (float, Field(alias=p.name, strict=True, allow_inf_nan=False, description=p.description))
        for i, p in enumerate(mechanism.parameters)
    }
    return create_model("Proposal", __config__=ConfigDict(extra="ignore"), reasoning=(str, ""), **numbers)
