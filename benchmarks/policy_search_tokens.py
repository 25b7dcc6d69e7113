"""Input tokens of a policy search by a language model, by format of the history in prompts.

    python benchmarks/policy_search_tokens.py [--iterations 400] [--warmup 20] [--episodes 20] [--only published ...]

The search optimizes a linear policy of CartPole (10 parameters) with replies of the scripted model, actual returns and
the prompts of `principal=llm`. For each format of the history, prints the estimated input tokens of all questions, of
the first and of the last question, and the share of the published format: all trials, with named parameters, after 20
random vectors (ProPS, arXiv 2511.21928). Savings from prompt caching by providers are not included. With the complete
history, almost all of a prompt is a prefix of the next prompt.
"""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

from llmrl.api.environments import make_env

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from llmrl.agents.controllers.linear import LayerSettings
from llmrl.agents.search_agent import LayeredAgent
from llmrl.config.builder import Builder
from llmrl.core.option_files import load_option
from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.core.services import PrincipalServices
from llmrl.llms.by_name import chat_model
from llmrl.llms.provider import estimate_tokens

VARIANTS: dict[str, dict[str, Any]] = {
    "published": {"prompt": "numeric", "rows": "named", "reply": "lines", "history": "all"},
    "compact rows": {"prompt": "numeric", "history": "all"},
    "best 20 and last 10": {"prompt": "numeric", "history": "best_and_last", "window": 20, "newest": 10},
    "best 20 and last 10, described": {"history": "best_and_last", "window": 20, "newest": 10},
}


def count_prompt_tokens(
    settings: dict[str, Any], iterations: int, warmup: int, episodes: int, seed: int = 0
) -> list[int]:
    """Run a search, and return the estimated number of tokens of each prompt, [iterations].

    Args:
        settings: options of `principal=llm`.
        iterations: number of iterations.
        warmup: number of random vectors before the first iteration.
        episodes: number of episodes of an evaluation.
        seed: seed of the search.
    """
    env = make_env("cartpole", n_envs=1, seed=seed)
    agent = LayeredAgent(env.spec, LayerSettings(True, 6.0, 1, "raw", True))
    seeds = Seeds(seed).child("benchmark")
    model = chat_model("scripted", seeds=seeds)
    services = PrincipalServices(env.spec, seeds, llm=model, controller=agent.controller)
    principal = Builder(services).build({**load_option("principal", "llm"), **settings}, "principal")
    principal.on_search_start(iterations, episodes)
    tokens = []
    with env.build_evaluator(True, 1) as evaluator:

        def evaluate(vectors: np.ndarray, i: int) -> list[Outcome]:
            batch = evaluator.evaluate(agent.controller, vectors, np.arange(episodes) + i * episodes)
            return [Outcome(v, float(r.mean()), r) for v, r in zip(vectors, batch.returns, strict=True)]

        if warmup:
            vectors = seeds.numpy("warmup").normal(0.0, 3.0, (warmup, agent.controller.space.dim)).round(1)
            principal.tell(evaluate(vectors, 0))
        for i in range(iterations):
            tokens.append(estimate_tokens(principal.build_prompt(None).text))
            principal.tell(evaluate(principal.ask(), i + 1))
    env.close()
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    args = parser.parse_args()
    logging.getLogger("llmrl").setLevel(logging.ERROR)
    print(f"CartPole, linear policy of 10 parameters, {args.warmup} random vectors, {args.iterations} iterations\n")
    print("| history | input tokens | first question | last question | share of published |")
    print("|---|---|---|---|---|")
    published_total = 0
    for name in dict.fromkeys(["published", *args.only]):
        tokens = count_prompt_tokens(VARIANTS[name], args.iterations, args.warmup, args.episodes)
        total = sum(tokens)
        published_total = published_total or total
        print(f"| {name} | {total:,} | {tokens[0]:,} | {tokens[-1]:,} | {total / published_total:.3f} |", flush=True)


if __name__ == "__main__":
    main()
