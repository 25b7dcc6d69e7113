"""The option `principal=llm`: a language model proposes the numbers of a mechanism, or the parameters of a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import ChatModel, Controller
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt
from llmrl.core.spaces import EnvSpec
from llmrl.principals.history import Contexts, Policy
from llmrl.principals.llm_mechanism import LLMMechanismPrincipal
from llmrl.principals.llm_principal import Fallback, LLMPrincipal, LLMSettings, OutOfRange
from llmrl.principals.llm_search import LLMSearch, Reply, Rows, SearchFormat


def llm_principal(
    spec: EnvSpec,
    llm: ChatModel | None,
    prompt_folder: Path | None = None,
    controller: Controller | None = None,
    prompt: str | None = None,
    history: Policy = "all",
    window: PositiveInt = 50,
    newest: NonNegativeInt = 10,
    contexts: Contexts = "all",
    measurements: Literal["pooled", "separate"] = "pooled",
    observations: bool | None = None,
    repair_turns: NonNegativeInt = 1,
    fallback: Fallback = "best",
    out_of_range: OutOfRange = "reask",
    duplicates: Literal["reask", "accept"] = "accept",
    together: bool = False,
    rows: Rows | None = None,
    reply: Reply | None = None,
    count_from: NonNegativeInt | None = None,
    told_iterations: PositiveInt | None = None,
    step_size: NonNegativeFloat | None = None,
    optimum: float | None = None,
    sliding_history: bool = False,
    advice: bool | None = None,
    turns: PositiveInt | None = None,
    episode_steps: NonNegativeInt | None = None,
) -> LLMPrincipal:
    """Return an `LLMSearch` where there is a policy to search, else an `LLMMechanismPrincipal`.

    Args:
        spec: the environment.
        llm: the chat model.
        prompt_folder: a user's own prompts; None: there are none.
        controller: the policy whose parameters are searched; None: a mechanism's numbers are set.
        prompt: name of the prompt. Of a mechanism one of `prompts/`, None takes the environment's own or `generic`; of
            a policy `numeric` or `described`, None is `described`.
        history: which proposals are shown of each context: `all`, the `last` or `best` ones, the `best_and_last`, or
            the `chain` of the best so far (see `History.select`).
        window: how many, for `last`, `best` and the best of `best_and_last`.
        newest: how many of the last ones, for `best_and_last`.
        contexts: show the proposals of `all` contexts, or only those of the present one (`own`).
        measurements: of a vector that was measured several times in a context the mean over all measurements is told
            (`pooled`): in its row where rows are chosen by payoff, else after the history. Or each is a row and no more
            is told (`separate`, published).
        observations: show what happened in the game beside each payoff; None: of a mechanism, yes, of a policy, no.
        repair_turns: chances to correct an invalid reply.
        fallback: where none is valid, propose the `best` vector of this context so far (of those that were judged by
            as many episodes as any one proposal) or the `last` one again (the middle of the bounds if there is none),
            or `stop` the run.
        out_of_range: a number out of bounds makes a reply invalid (`reask`), is put inside them (`clamp`), or is tried
            as it is (`accept`; of a policy only, and published). Of choices, as an action is one, there are none out of
            bounds: there `accept` is `reask`.
        duplicates: a proposal made before makes a reply invalid (`reask`) or is tried once more (`accept`).
        together, rows, reply, count_from, told_iterations, advice, turns, episode_steps: see `SearchFormat`; None is
            its default. Of a policy only.
        step_size: hint by how much to change numbers when exploring; None: no hint.
        optimum: hint what the highest payoff is about; None: no hint.
        sliding_history: exactly `window` or `newest` of the last proposals are shown (published); else they grow to
            less than twice as many and are cut back, so that providers can keep most of a question.

    Raises:
        ConfigError: no chat model, no mechanism, no such prompt, or a setting of the other kind of search.
    """
    if llm is None:
        raise ConfigError(
            "principal=llm needs a chat model, and llm=none is none: choose llm=gpt4o, gpt4o_mini, claude, gemini "
            "(each with a key in the environment), ollama, openai_compatible, or scripted (offline, fixed rules)."
        )
    searches = controller is not None
    settings = LLMSettings(
        prompt_folder=prompt_folder,
        prompt=prompt,
        history=history,
        window=window,
        newest=newest,
        contexts=contexts,
        measurements=measurements,
        observations=not searches if observations is None else observations,
        repair_turns=repair_turns,
        fallback=fallback,
        out_of_range=out_of_range,
        duplicates=duplicates,
        step_size=step_size,
        optimum=optimum,
        sliding_history=sliding_history,
    )
    form: dict[str, Any] = {
        "rows": rows,
        "reply": reply,
        "count_from": count_from,
        "told_iterations": told_iterations,
        "advice": advice,
        "turns": turns,
        "episode_steps": episode_steps,
    }
    chosen = {name: value for name, value in form.items() if value is not None}
    if controller is not None:
        return LLMSearch(spec, llm, controller, settings, SearchFormat(together, **chosen))
    only = {**({"together": together} if together else {}), **chosen}
    only |= {"out_of_range": out_of_range} if out_of_range == "accept" else {}
    for name, value in only.items():
        raise ConfigError(
            f"principal.{name}={value} is for the parameters of a policy (agent=linear, ...), not for the numbers of a "
            "mechanism; leave it as it is in conf/principal/llm.yaml"
        )
    return LLMMechanismPrincipal(spec, llm, settings)
