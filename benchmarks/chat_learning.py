"""Throughput of chat models that learn blackjack from complete episodes, compared with multi-turn GRPO of TRL.

    python benchmarks/chat_learning.py                                       # 1 M weights on a CPU
    python benchmarks/chat_learning.py --width 768 --layers 12 --device cuda --only llmrl      # about 100 M weights
    python benchmarks/chat_learning.py --width 1024 --layers 36 --device cuda --only llmrl     # about 500 M weights

Both train all weights of a Llama model of the same architecture with groups of 8 episodes, in the same process. Prompts
differ: llmrl describes the state and parses JSON; TRL describes rules, tools and state in the chat template of Qwen and
parses tool calls. Therefore, tokens per second are reported in addition to episodes per second. `tokens` counts sampled
tokens and prompt tokens that are not cached. Sampling is the share of time in `generate` of transformers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

import llmrl
from llmrl.chat_learning.grpo import ChatGRPO
from llmrl.llms.local.learning import Trajectory
from llmrl.llms.local.small import SmallModelShape, make_llama, make_tokenizer

GROUP = 8
REPLY = '<tool_call>\n{"name": "act", "arguments": {"action": "stick"}}\n</tool_call><|im_end|>'


@dataclass
class Usage:
    """Counts of a training run.

    Attributes:
        start: time of the first call of `generate`; 0: no call yet.
        seconds: time from `start` to the end of the last update.
        sampling_seconds: time in `generate`, seconds.
        prompt_tokens: number of processed prompt tokens, without cached ones.
        reply_tokens: number of sampled tokens.
        episodes: number of episodes.
    """

    start: float = 0.0
    seconds: float = 0.0
    sampling_seconds: float = 0.0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    episodes: int = 0

    def format_row(self, name: str) -> str:
        """Format a row of the table."""
        return (
            f"{name:16} {self.episodes / self.seconds:12.1f} {self.reply_tokens / self.seconds:14.0f} "
            f"{(self.prompt_tokens + self.reply_tokens) / self.seconds:12.0f} "
            f"{self.sampling_seconds / self.seconds:10.0%}"
        )


@contextlib.contextmanager
def count_usage(usage: Usage) -> Iterator[None]:
    """Count the tokens and the time of `generate`."""
    generate = transformers.GenerationMixin.generate

    def wrapper(model: Any, inputs: torch.Tensor | None = None, **options: Any) -> Any:
        start = time.perf_counter()
        usage.start = usage.start or start
        output = generate(model, inputs, **options)
        usage.sampling_seconds += time.perf_counter() - start
        ids = inputs if inputs is not None else options["input_ids"]
        cache = options.get("past_key_values")
        n_cached = 0 if cache is None or isinstance(cache, str) else cache.get_seq_length()
        sequences = getattr(output, "sequences", output)
        usage.prompt_tokens += int(options["attention_mask"].sum()) - len(ids) * min(n_cached, ids.shape[1])
        usage.reply_tokens += len(ids) * (sequences.shape[1] - ids.shape[1])
        return output

    transformers.GenerationMixin.generate = wrapper  # type: ignore[method-assign]
    try:
        yield
    finally:
        transformers.GenerationMixin.generate = generate  # type: ignore[method-assign]


def train_llmrl(folder: Path, arguments: argparse.Namespace) -> Usage:
    """Train with `llm/learn=grpo` of llmrl."""
    usage = Usage()
    options = [
        *("env=blackjack", f"env.n_envs={arguments.episodes}", "agent=llm_player", "agent.history=0"),
        *("agent.reflection=false", "agent.repair_turns=0", "agent.show=[]", "llm=small_chat", "llm/learn=grpo"),
        *(f"llm.make.width={arguments.width}", f"llm.make.layers={arguments.layers}", "llm.make.format_steps=60"),
        *(f"llm.learn.group_size={GROUP}", "learn.evaluate_episodes=8", f"output_root={folder}", "loggers=[]"),
        *(f"hardware.device={arguments.device}", "llm.max_invalid=null", "hardware.cores=null"),
    ]
    n_steps = arguments.updates * arguments.episodes
    llmrl.train(*options, f"learn.env_steps={arguments.episodes}", name="first")  # creates the model
    update, usage_after_update = ChatGRPO.update, [usage]

    def update_and_count(learner: ChatGRPO, trajectories: Sequence[Trajectory], generator: torch.Generator) -> Any:
        metrics = update(learner, trajectories, generator)
        usage.episodes += len(trajectories)
        usage_after_update[0] = replace(usage, seconds=time.perf_counter() - usage.start)
        return metrics

    ChatGRPO.update = update_and_count  # type: ignore[method-assign]
    with count_usage(usage):
        llmrl.train(*options, f"learn.env_steps={n_steps}", name="measured")
    return usage_after_update[0]


def make_tool_model(folder: Path, kind: type, arguments: argparse.Namespace) -> None:
    """Write a model of the same architecture that is trained to reply to first observations with a tool call."""
    from trl.chat_template_utils import qwen3_chat_template

    environment = kind()
    shape = SmallModelShape(arguments.width, arguments.layers, tokens="messages", longest=8192)
    tokenizer = make_tokenizer([environment.reset(seed=seed) + REPLY for seed in range(32)], shape)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = qwen3_chat_template
    torch.manual_seed(0)
    model = make_llama(tokenizer, shape)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    target = tokenizer.encode(REPLY, add_special_tokens=False)
    for seed in range(100):
        messages = [{"role": "user", "content": environment.reset(seed=seed)}]
        prompt = tokenizer.apply_chat_template(
            messages, tools=[environment.act], add_generation_prompt=True, enable_thinking=False, return_dict=False
        )
        model(torch.tensor([prompt + target]), labels=torch.tensor([[-100] * len(prompt) + target])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train_trl(folder: Path, arguments: argparse.Namespace) -> Usage:
    """Train with TRL's `GRPOTrainer`."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    usage = Usage()
    kind = llmrl.trl_environment("blackjack")
    make_tool_model(folder / "tools", kind, arguments)
    n_groups = arguments.updates * arguments.episodes // GROUP
    settings = GRPOConfig(
        output_dir=str(folder / "trl"),
        max_steps=arguments.updates,
        per_device_train_batch_size=arguments.episodes,
        num_generations=GROUP,
        max_completion_length=160,
        max_tool_calling_iterations=4,
        temperature=1.0,
        learning_rate=1e-3,
        chat_template_kwargs={"enable_thinking": False},
        report_to=[],
        use_cpu=arguments.device == "cpu",
        save_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        bf16=False,
    )
    prompt = [{"role": "user", "content": ""}]
    trainer = GRPOTrainer(
        model=str(folder / "tools"),
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": [prompt] * n_groups, "seed": list(range(n_groups))}),
        environment_factory=kind,
    )
    with count_usage(usage):
        trainer.train()
    seconds, n_episodes = time.perf_counter() - usage.start, arguments.updates * arguments.episodes
    return replace(usage, seconds=seconds, episodes=n_episodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--width", type=int, default=128, help="width of the layers (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="number of layers (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=64, help="episodes per update, multiple of 8 (%(default)s)")
    parser.add_argument("--updates", type=int, default=6, help="number of updates (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", choices=("llmrl", "trl"), help="measure only this library")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"{'':16} {'episodes/s':>12} {'reply tokens/s':>14} {'tokens/s':>12} {'sampling':>10}")
    with tempfile.TemporaryDirectory() as name:
        for title, train in (("llmrl", train_llmrl), ("trl", train_trl)):
            if arguments.only in (None, title):
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    usage = train(Path(name), arguments)
                print(usage.format_row(title), flush=True)


if __name__ == "__main__":
    main()
