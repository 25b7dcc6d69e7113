"""Frames per second and memory of a language model policy: scoring in rollouts, and PPO updates.

The model has the architecture of Flan-T5 and random weights. Prompts are those of MixedTrainLocal (three observations).
Rollouts are compared with a plain implementation that runs the model once for each (prompt, candidate) pair. The
agent encodes each distinct prompt of a rollout step once for all candidates.

    python benchmarks/llm_ppo.py                          # architecture of Flan-T5-small, on the CPU
    python benchmarks/llm_ppo.py --shape large --device cuda --precision bfloat16
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from llmrl.agents.llm_ppo.agent import LanguagePPOAgent, LanguagePPOSettings
from llmrl.algorithms.ppo import PPOSettings
from llmrl.api.environments import make_env
from llmrl.core.processes import ProcessGroup
from llmrl.core.seeding import Seeds
from llmrl.llms.by_name import build_model
from llmrl.llms.local.lora import Lora
from llmrl.rollout.collector import Collector

SHAPES = {
    "small": {"d_model": 512, "d_ff": 1024, "num_layers": 8, "num_heads": 6},
    "large": {"d_model": 1024, "d_ff": 2816, "num_layers": 24, "num_heads": 16},
    "xl": {"d_model": 2048, "d_ff": 5120, "num_layers": 24, "num_heads": 32},
}
PUBLISHED = "published: about 4.2 frames/s in total on 8 A100 (80 GB) for pretrained Flan-T5-large"


def make_model(folder: Path, shape: str) -> None:
    """Write a T5 model with the architecture of Flan-T5 and random weights.

    The vocabulary of its tokenizer consists of bytes and of words of the prompts.
    """
    from llmrl.llms.local.small import SmallModelShape, make_small_model

    env = make_env("babyai_text", level="BabyAI-MixedTrainLocal-v0", n_envs=8)
    env.provide(("prompt",))
    texts = [str(text) for text in env.reset(seed=0)["prompt"].ravel()]
    make_small_model(
        folder,
        [*texts * 50, *env.spec.action_names * 400],
        shape=SmallModelShape(width=32, tokens="words", vocabulary=600),
    )
    config = transformers.T5Config(
        vocab_size=32128,
        d_kv=64,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
        **SHAPES[shape],
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)


def measure_seconds(device: str, function: Callable[[], object]) -> float:
    """Return the duration of a call, seconds, including pending work of the device."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--tune", choices=("full", "lora"), default="full")
    parser.add_argument("--games", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="steps of each game in a rollout")
    parser.add_argument("--minibatch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--piece-tokens", type=int, default=16384)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), args.shape)
        scorer = build_model("local_scorer_seq2seq", model=str(folder), device=args.device)
        env = make_env("babyai_text", level="BabyAI-MixedTrainLocal-v0", n_envs=args.games)
        ppo = PPOSettings(
            1e-6, 1e-5, 0.99, 0.99, args.epochs, args.minibatch, 0.2, None, True, 0.01, 0.5, 0.5, None, True
        )
        settings = LanguagePPOSettings(
            text_channel="prompt",
            actions="scores",
            temperature=1.0,
            tune=args.tune,
            lora=Lora(),
            head_hidden=[1024, 1024],
            head_activation="sigmoid",
            precision=args.precision,
            recompute=False,
            piece_tokens=args.piece_tokens,
            kl_coefficient=0.0,
            init_from=None,
            ppo=ppo,
        )
        agent = LanguagePPOAgent(env.spec, settings, Seeds(0), args.device, scorer, ProcessGroup(), has_principal=False)
        collector = Collector(env, agent.policy, args.device)
        collector.reset(0)
        collector.collect(1, Seeds(0).torch("warm"))
        frames = args.steps * args.games
        rollouts = []
        rollout_seconds = measure_seconds(
            args.device, lambda: rollouts.append(collector.collect(args.steps, Seeds(0).torch("rollout")))
        )
        prompts, _ = rollouts[0].observation["prompt"].unique()
        names = env.spec.continuations("prompt")

        @torch.no_grad()
        def score_pairs() -> None:
            for prompt in prompts[: args.games]:
                for name in names:
                    scorer.score([prompt], [name])

        pairwise_seconds = measure_seconds(args.device, score_pairs) / min(args.games, len(prompts)) * frames
        update_seconds = measure_seconds(args.device, lambda: agent.update(rollouts[0], Seeds(0).torch("minibatches")))
        description = agent.describe()
        lengths = scorer.count_prompt_tokens(prompts)
    device_name = torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} threads"
    tokens, ratio = sum(lengths) / len(lengths), pairwise_seconds / rollout_seconds
    print(f"architecture of Flan-T5-{args.shape}, RANDOM weights, {args.precision}, tune={args.tune}; {device_name}")
    print(
        f"{description['parameters']:,} parameters, {description['trainable']:,} trainable; "
        f"prompts of {tokens:.0f} tokens"
    )
    rollout_rate, pairwise_rate = frames / rollout_seconds, frames / pairwise_seconds
    print(f"rollout  {rollout_rate:8.2f} frames/s   pair by pair {pairwise_rate:8.2f}   ratio {ratio:5.1f}")
    print(f"update   {frames / update_seconds:8.2f} frames/s   ({args.epochs} epochs, minibatches of {args.minibatch})")
    print(f"both     {frames / (rollout_seconds + update_seconds):8.2f} frames/s")
    if args.device == "cuda":
        print(f"memory   {torch.cuda.max_memory_allocated() / 2**30:8.1f} GiB, peak")
    print(PUBLISHED)


if __name__ == "__main__":
    main()
