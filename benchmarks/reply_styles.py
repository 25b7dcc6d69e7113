"""Robustness of the reply parsers to the reply styles of language models.

Each run is executed twice against a local server that answers with the rules of llm=scripted. With `plain`, all
replies are JSON. With `styled`, replies have one of thirteen styles that were observed in eight model families, and
3 % of them contain no answer (empty, refused, truncated). Prints the result of each run and the share of questions
that ended in a fallback. Targets: fewer than 2 % fallbacks, and equal results.

    python benchmarks/reply_styles.py [--small]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import llmrl
from fake_openai_server import FakeOpenAIServer
from styles import StyledModel

RUNS = {
    "player, blackjack": ("env=blackjack", "agent=llm_player", "env.n_envs=8", "play.episodes=200"),
    "player, taxi": ("env=taxi", "agent=llm_player", "env.n_envs=4", "play.episodes=8"),
    "teacher, taught student": (
        "experiment=teacher/rooms",
        "treatment=taught",
        "teacher=llm",
        "learn.env_steps=100000",
    ),
    "principal, escape room": ("experiment=regimes/escape_room", "principal=llm", "env.n_envs=32", "design.steps=24"),
    "search, cart pole": ("env=cartpole", "agent=linear", "principal=llm", "search.iterations=60"),
}
SMALL = {
    "player, blackjack": ("play.episodes=8",),
    "player, taxi": ("play.episodes=1", "env.n_envs=1", "env.horizon=20"),
    "teacher, taught student": ("learn.env_steps=2000",),
    "principal, escape room": ("design.steps=4", "design.adapt_rounds=2"),
    "search, cart pole": ("search.iterations=4", "search.episodes=2"),
}


def count_replies(name: str, use_styles: bool, small: bool) -> tuple[float | None, dict[str, float]]:
    """Return the result of a run and its counts of replies, invalid replies, repairs and fallbacks.

    Args:
        name: key of `RUNS`.
        use_styles: whether replies have various styles instead of plain JSON.
        small: whether to use the short run of `SMALL`.
    """
    rule = StyledModel() if use_styles else StyledModel(invalid_share=0.0, styles=["plain"])
    with FakeOpenAIServer(rule, model="rules") as server, tempfile.TemporaryDirectory() as folder:
        model = ("llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=rules", "llm.cache=off")
        size_options = SMALL[name] if small else ()
        run = llmrl.train(*RUNS[name], *size_options, *model, f"output_root={folder}", "design.references=0")
        rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
        calls = [json.loads(line) for line in (run.folder / "llm_calls.jsonl").read_text().splitlines()]
    parsed_calls = [call for call in calls if "parsed_call" in call]
    counts = {key: row[key] for row in rows for key in row if key.startswith("llm/")}
    counts["parsed"], counts["invalid"] = len(parsed_calls), sum(not call["valid"] for call in parsed_calls)
    return run.result, counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="run shorter versions, for one minute in total")
    small = parser.parse_args().small
    print(f"{'run':24} {'plain':>9} {'styled':>9} {'replies':>8} {'invalid':>8} {'fallbacks':>9} of questions")
    for name in RUNS:
        plain, _ = count_replies(name, False, small)
        styled, counts = count_replies(name, True, small)
        questions = counts["parsed"] - counts.get("llm/repairs", 0.0)
        fallbacks = counts.get("llm/fallbacks", 0.0)
        print(
            f"{name:24} {plain:9.4g} {styled:9.4g} {counts['parsed']:8.0f} {counts['invalid'] / counts['parsed']:8.1%} "
            f"{fallbacks:9.0f} {fallbacks / questions:.2%}",
            flush=True,
        )
