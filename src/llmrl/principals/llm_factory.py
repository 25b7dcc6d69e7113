"""Factory of `principal=llm`: a language model proposes the values of a mechanism or the parameters of a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.protocols import Controller
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
    one_prompt_per_batch: bool = False,
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
    history_tokens: PositiveInt | None = None,
) -> LLMPrincipal:
    """Return an `LLMSearch` where there is a policy to search, else an `LLMMechanismPrincipal`.

    Args:
        spec: spec of the environment.
        llm: the chat model.
        prompt_folder: folder of a user's own prompts; None: there is none.
        controller: policy whose parameters are searched; None: a mechanism's values are set.
        prompt: name of the prompt. For a mechanism one of `prompts/`, by default the environment's own or `generic`;
            for a policy `numeric` or `described` (default).
        history: proposals shown of each context: `all`, the `last` or `best` ones, the `best_and_last`, or the `chain`
            of the best so far (see `History.select`).
        window: number of proposals shown with `last` and `best`, and of best ones with `best_and_last`.
        newest: number of last proposals shown with `best_and_last`.
        contexts: show the proposals of `all` contexts, or only those of the present one (`own`).
        measurements: presentation of a vector measured several times in a context. `pooled`: the mean over all
            measurements, in its row if rows are chosen by payoff, else after the history. `separate`: one row per
            measurement and no mean (published).
        observations: show what happened in the game beside each payoff; None: for mechanisms only.
        repair_turns: chances to correct an invalid reply.
        fallback: reaction if no reply is valid: propose the `best` vector of this context so far (of those judged by
            as many episodes as any one proposal), propose the `last` one again, or `stop` the run. Without earlier
            vectors the middle of the bounds is proposed.
        out_of_range: a number out of bounds makes a reply invalid (`reask`), is clipped (`clamp`), or is tried
            unchanged (`accept`; for policies only, published). For discrete choices `accept` means `reask`.
        duplicates: a repeated proposal makes a reply invalid (`reask`) or is evaluated again (`accept`).
        one_prompt_per_batch, rows, reply, count_from, told_iterations, advice, turns, episode_steps: see
            `SearchFormat`, whose defaults None stands for. For policies only.
        step_size: hint of the step size for exploration; None: no hint.
        optimum: hint of the approximate highest payoff; None: no hint.
        sliding_history: show exactly `window` or `newest` of the last proposals (published); else the list grows to
            less than twice as many before it is cut, so that providers can cache most of a prompt.

        history_tokens: tokens of the history in a question with `all`. If there are more, it shows the best and the
            newest proposals, and quantiles of all payoffs. None: all are shown, as long as the model's context window
            has room.

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
        history_tokens=history_tokens,
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
        return LLMSearch(spec, llm, controller, settings, SearchFormat(one_prompt_per_batch, **chosen))
    only = {**({"one_prompt_per_batch": one_prompt_per_batch} if one_prompt_per_batch else {}), **chosen}
    only |= {"out_of_range": out_of_range} if out_of_range == "accept" else {}
    for name, value in only.items():
        raise ConfigError(
            f"principal.{name}={value} is for the parameters of a policy (agent=linear, ...), not for the numbers of a "
            "mechanism; leave it as it is in conf/principal/llm.yaml"
        )
    return LLMMechanismPrincipal(spec, llm, settings)
