"""Factory of `principal=llm`: a language model proposes the values of a mechanism or the parameters of a policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.protocols import Controller
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.llms.client import ChatClient
from llmrl.principals.llm_mechanism import LLMMechanismPrincipal
from llmrl.principals.llm_principal import LLMPrincipal, LLMSettings
from llmrl.principals.llm_search import LLMSearch
from llmrl.principals.proposal_learning import ProposalLearning


def llm_principal(
    settings: LLMSettings,
    spec: EnvSpec,
    llm: ChatModel | None,
    prompt_folder: Path | None = None,
    controller: Controller | None = None,
    seeds: Seeds | None = None,
) -> LLMPrincipal:
    """Return an `LLMSearch` if there is a policy to search, else an `LLMMechanismPrincipal`.

    Args:
        settings: options.
        spec: specification of the environment.
        llm: the chat model.
        prompt_folder: folder of user-defined prompts; None: only the shipped prompts.
        controller: policy whose parameters are searched; None: the principal sets a mechanism.
        seeds: seed tree of the training of the chat model; None: `Seeds(0)`.

    Raises:
        ConfigError: there is no chat model, mechanism or prompt, or a setting applies to policy search only.
    """
    if llm is None:
        raise ConfigError(
            "principal=llm needs a chat model, but llm=none is set; choose llm=gpt4o, gpt4o_mini, claude, gemini "
            "(each with a key in the environment), ollama, openai_compatible, or scripted (offline, fixed rules)."
        )
    if settings.observations is None:
        settings = replace(settings, observations=controller is None)
    principal: LLMPrincipal
    if controller is not None:
        principal = LLMSearch(spec, llm, controller, settings, prompt_folder)
    elif settings.out_of_range == "accept":
        raise ConfigError(
            "principal.out_of_range=accept applies to the parameters of a policy (agent=linear, ...), not to the "
            "numbers of a mechanism; use reask or clamp"
        )
    else:
        principal = LLMMechanismPrincipal(spec, llm, settings, prompt_folder)
    if isinstance(llm, ChatClient) and llm.provider.learners is not None:
        principal.learning = ProposalLearning(llm.provider.learners, (seeds or Seeds(0)).child("learning"))
    return principal
