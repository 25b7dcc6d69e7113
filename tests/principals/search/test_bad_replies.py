"""Policy searches with invalid replies: repair turns, counts and fallbacks."""

import json
import re

import numpy as np
import pytest

from experiments import find_run_folder, list_search_overrides, run
from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.finetuning.prompt_format import PromptFormat
from llmrl.finetuning.rewards import ReplyEvaluator
from llmrl.finetuning.search_task import SearchTask
from llmrl.llms.call_log import CALL_LOG_NAME as LEDGER
from llmrl.llms.call_log import read_calls
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.run.proposals import read_proposal_lines
from policies import LAKE, POLE, make_policy_outcome, make_searcher
from shipped import build_dataset

STORM = (
    "llm.malformed=0.1", "llm.out_of_range=0.1", "llm.empty=0.1", "llm.truncated=0.1", "llm.refusal=0.1",
    "llm.max_invalid=null",
)  # fmt: skip
TINY = ("env.n_envs=1", "search.evaluate_episodes=2", "search.evaluation_interval=0", "hardware.cores=1")


def run_search(tmp_path, *overrides):
    """Return the last row of a run with a language model, its calls and its proposals without those of the warm-up."""
    run(*overrides, f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    proposals = [p for p in read_proposal_lines(folder) if p["iteration"]]
    return [row for row in rows if "llm/calls" in row][-1], list(read_calls(folder / LEDGER)), proposals


def search_with_replies(tmp_path, reply, *overrides):
    """Run a search with a server whose replies are given by the function `reply`."""
    with FakeOpenAIServer(reply) as server:
        model = ("llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=fake-model", "llm.api_key_env=null")
        return run_search(tmp_path, *model, *overrides)


def lines(numbers):
    """Return a reply in the published format."""
    return "; ".join(f"params[{i}]: {x}" for i, x in enumerate(numbers)) + "\nBecause."


def numbers_in(text):
    return np.array([float(x) for x in re.findall(r"(?<!\w\[)(?<![\w.])-?\d+\.?\d*", text)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "overrides", "takes_any"),
    [
        (("cartpole",), ("principal=llm", "env.horizon=60", "search.warmup=2"), False),
        (("mountain_car", "props"), ("env.horizon=30", "search.warmup=2"), True),
        pytest.param(("nim", "props"), ("search.warmup=2",), False, marks=pytest.mark.long),
        pytest.param(("reacher", "props"), ("env.horizon=10", "search.warmup=2"), True, marks=pytest.mark.long),
    ],
)
def test_malformed_replies(tmp_path, case, overrides, takes_any):
    """The search continues if half of all replies are malformed, and counts each of them.

    Numbers out of bounds are valid where the search evaluates them.
    """
    if case[0] == "reacher":
        pytest.importorskip("mujoco")
    budget = ("search.iterations=30", "search.episodes=1", "principal.repair_turns=1", "principal.fallback=best")
    model = ("llm=scripted", *STORM)
    last, calls, proposals = run_search(tmp_path, *list_search_overrides(*case), *overrides, *budget, *TINY, *model)
    is_extreme = [
        len(call["reply"]) > 0 and np.abs(numbers_in(call["reply"])).max(initial=0.0) >= 1e4 for call in calls
    ]
    for call, huge in zip(calls, is_extreme, strict=True):
        text = call["reply"]
        is_intact = "By rule, not by thought" in text and text[-1] in "}." and not text.startswith("Sure!")
        assert call["valid"] == (is_intact and (takes_any or not huge))
    invalid = sum(not call["valid"] for call in calls)
    assert last["llm/invalid_replies"] == invalid and last["llm/calls"] == len(calls)
    assert last["llm/invalid_replies"] == last["llm/repairs"] + 2 * last["llm/fallbacks"]
    assert 0.25 < invalid / len(calls) < 0.7 and last["llm/fallbacks"] > 0 and last["llm/repairs"] > 0
    extreme_proposals = [np.abs(p["vector"]).max() >= 1e4 for p in proposals]
    assert len(proposals) == 30 and any(is_extreme) and any(extreme_proposals) == takes_any
    assert last["llm/unplayable_proposals"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "states", "actions", "action"),
    [("frozen_lake", 16, 4, 4), ("cliff_walking", 48, 4, -1), ("maze", 9, 4, -1), ("nim", 11, 3, 3)],
)
def test_impossible_actions_do_not_reach_game(tmp_path, task, states, actions, action):
    """The published setting evaluates parameters out of bounds, but actions must exist."""
    bad, good = lines([action] * states), lines([0] * states)

    def reply(messages):
        is_new_turn = "This is iteration 2" not in messages[0]["content"] and len(messages) > 1
        return good if is_new_turn else bad

    budget = ("search.iterations=3", "search.episodes=2", "principal.repair_turns=1", "principal.fallback=best")
    preset = (*list_search_overrides(task, "props"), "search.warmup=1")
    last, calls, proposals = search_with_replies(tmp_path, reply, *preset, *budget, *TINY)
    assert [last[f"llm/{name}"] for name in ("invalid_replies", "repairs", "fallbacks")] == [4, 2, 1]
    assert f"params[0]={action} is outside [0, {actions - 1}]" in calls[1]["messages"][2]["content"]
    assert all(set(p["vector"]) <= set(range(actions)) for p in proposals) and len(proposals) == 3


def test_finetuning_rejects_impossible_actions():
    """Fine-tuning treats proposals like the search and samples tables from existing actions."""
    prompt_format = PromptFormat(make_searcher(LAKE, out_of_range="accept"))
    assert (
        prompt_format.to_evaluated_vector(np.array([0.0, 2.0, 1.0, 3.0])) is None
        and prompt_format.to_evaluated_vector(np.array([-1.0, 0, 0, 0])) is None
    )
    assert prompt_format.to_evaluated_vector(np.array([0.0, 2.0, 1.0, 2.0])).tolist() == [0, 2, 1, 2]
    assert make_searcher(LAKE, out_of_range="clamp").parse_reply("[0, -3, 1, 9]").vector.tolist() == [0, 0, 1, 2]


def test_random_table_trials_use_valid_actions(tmp_path):
    trial_vectors = []

    def play(vectors, seeds):
        trial_vectors.append(vectors)
        return np.arange(float(len(vectors)))[:, None]

    task = SearchTask("lake", LAKE, {}, play, PromptFormat(make_searcher(LAKE)))
    build_dataset(trials=64, episodes=1, low=-10.0, high=10.0, prompts=1, held_out=1, examples=1).prepare(
        task, tmp_path, Seeds(0)
    )
    assert {*np.concatenate(trial_vectors).ravel()} == {0.0, 1.0, 2.0}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["mountain_car_continuous", "swimmer"])
def test_non_finite_returns_are_counted(tmp_path, task):
    """The published setting has unclipped actions, unbounded parameters, and stops at unparsable replies."""
    if task == "swimmer":
        pytest.importorskip("mujoco")
    d = {"mountain_car_continuous": 3, "swimmer": 18}[task]
    sizes = {"0 of": 0.1, "1 of": 1e40, "2 of": 0.2}

    def reply(messages):
        return lines([next(x for key, x in sizes.items() if f"This is iteration {key}" in messages[0]["content"])] * d)

    budget = ("search.iterations=3", "search.episodes=2", "search.warmup=0", "env.horizon=20")
    last, calls, proposals = search_with_replies(tmp_path, reply, *list_search_overrides(task, "props"), *budget, *TINY)
    assert last["llm/unplayable_proposals"] == 1 and last["llm/repeated_proposals"] == 0 and len(calls) == 3
    assert [p["vector"] for p in proposals] == [[0.1] * d, [0.1] * d, [0.2] * d]
    assert [p.get("reasoning") for p in proposals] == ["Because.", None, "Because."]
    assert np.isfinite([p["returns"] for p in proposals]).all() and last["episodes"] == 6


def test_only_invalid_proposals_are_replaced():
    principal = make_searcher(POLE)
    principal.reasons, principal.fallbacks = ["a", "b", "c"], [False, False, True]
    principal.notes = ["", "", "no reply"]
    vectors = np.arange(24.0).reshape(3, 8)
    replacements = principal.replace_failed(vectors, np.array([False, True, False]))
    assert replacements.tolist() == [vectors[0].tolist(), [0.0] * 8, vectors[2].tolist()]
    assert principal.reasons == ["a", "", "c"] and principal.fallbacks == [False, True, True]
    assert principal.counters["unplayable_proposals"] == 1
    principal.tell([make_policy_outcome(vector, 1.0) for vector in replacements])
    rows = [line for line in principal.build_prompt(None).text.splitlines() if " -> " in line]
    assert ["not what you proposed" in row for row in rows] == [False, True, False] and "no reply" in rows[2]
    restored = make_searcher(POLE)
    restored.load_state_dict(principal.state_dict())
    assert restored.counters == principal.counters


def test_other_principals_report_non_finite_returns(tmp_path):
    huge = ("agent.bound=1e40", "agent.decimals=null", "agent.clip_actions=false", "principal.values=[1e40,1e40,1e40]")
    with pytest.raises(ConfigError, match=r"agent.bound"):
        run("env=mountain_car_continuous", "agent=linear", "principal=fixed", *huge, f"output_root={tmp_path}")


def test_huge_numbers_are_not_rounded():
    space = ParameterSpace("two", (Parameter("a", -6.0, 6.0, "", "", 1), Parameter("b", -6.0, 6.0, "", "", None)))
    assert space.round_values(np.array([1.7e308, -1e300]), clip=False).tolist() == [1.7e308, -1e300]
    assert space.round_values(np.array([0.25, 0.25]) + 1e9, clip=False).tolist() == [1e9 + 0.2, 1e9 + 0.25]
    principal = make_searcher(POLE, out_of_range="accept")
    assert principal.parse_reply(str([1e308] * 8)).vector.tolist() == [1e308] * 8
    with pytest.raises(InvalidReply):
        principal.parse_reply(str([1e308] * 7 + [float("inf")]))


def test_non_finite_return_has_no_value():
    prompt_format = PromptFormat(make_searcher(POLE, out_of_range="accept"))

    class StubPrompt:
        shown_trials = ()

    evaluator = ReplyEvaluator(
        prompt_format, lambda vectors, seeds: np.where(np.abs(vectors[:, :1]) > 1e30, -np.inf, 1.0), 1, Seeds(0)
    )
    attempts = evaluator([StubPrompt(), StubPrompt()], [str([1e40] * 8), str([7.0] * 8)], "now")
    assert [attempt.value for attempt in attempts] == [None, 1.0]
