"""Fine-tuning from beginning to end: data, evaluation, training, evaluation."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import CheckpointError, ConfigError
from llmrl.core.records import State
from llmrl.core.run_context import RunContext
from llmrl.core.seeding import Seeds
from llmrl.finetuning.prompt_format import ProposalPrompt
from llmrl.finetuning.proposal_examples import ProposalExample
from llmrl.finetuning.proposer_evaluation import (
    RESULTS,
    ProposerEvaluation,
    baselines,
    chat_requests,
    difference,
    measure,
    summarize,
)
from llmrl.finetuning.reward_function import RewardFunction
from llmrl.finetuning.rewards import Rewards, Scale
from llmrl.finetuning.search_task import Dataset, PromptDataset, SearchTask, write_questions
from llmrl.finetuning.sft import check_replies
from llmrl.finetuning.trainer import quiet, save_adapter
from llmrl.finetuning.training_job import Method, TrainingJob
from llmrl.finetuning.trials import ParameterTrial
from llmrl.llms.client import ChatClient
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.loading import empty_model, load_model
from llmrl.llms.validity import Validity
from llmrl.loops.compute_requests import Chat, Delegate, Log, Request, Requests, SafePoint
from llmrl.run.files import write_json

log = logging.getLogger(__name__)

HELD_OUT = "held_out"
"""What the task that is trained on is called in results; other tasks have their own names."""
ADAPTER, WEIGHTS = "adapter", "trainer"
"""In the run folder: the adapter, the checkpoints of weights."""

Models = Callable[[str | None], ChatClient]
"""The model as it will be asked, with an adapter (its folder) or without (None)."""


@dataclass(frozen=True)
class FinetuneSettings:
    """What is trained on, how, for what, and how it is evaluated.

    Attributes:
        dataset, rewards, method, evaluation: as `conf/finetune.yaml` has them.
    """

    dataset: Dataset
    rewards: Rewards
    method: Method
    evaluation: ProposerEvaluation


@dataclass
class _Asked:
    """A task as it is evaluated."""

    task: SearchTask
    questions: Sequence[ProposalPrompt]
    judge: RewardFunction
    rewards: Rewards
    scale: Scale


class FinetuneLoop:
    """Trains an adapter for the language model that proposes policy parameters.

    A checkpoint of the run holds what has been measured and names the step of the trainer's checkpoint that goes with
    it; data is made again, from kept trials, whenever a run is resumed.

    Args:
        task: to train on.
        transfer: other tasks, which are evaluated only.
        settings: what is trained on, and how.
        models: makes the model that is asked.
        store: folder of kept trials.
        seeds: the loop's.
    """

    def __init__(
        self,
        task: SearchTask,
        transfer: Sequence[SearchTask],
        settings: FinetuneSettings,
        models: Models,
        store: Path,
        seeds: Seeds,
    ) -> None:
        self.task, self.transfer = task, list(transfer)
        self.dataset, self.rewards = settings.dataset, settings.rewards
        self.method, self.evaluation = settings.method, settings.evaluation
        self.models, self.store, self.seeds = models, store, seeds
        self.measured: dict[str, dict[str, State]] = {"before": {}, "after": {}}
        self.meters: dict[str, State] = {}  # of the model before and after
        self.step = 0
        self.trained = False

    def plan(self) -> list[tuple[str, str]]:
        """What the whole run would do: rows (what, how much)."""
        d = self.dataset
        asked = d.held_out * (1 + len(self.transfer))
        episodes = d.trials * d.episodes + len(self.transfer) * self.evaluation.transfer_trials * d.episodes
        rows = [
            ("data", f"{d.trials:,} random trials of {d.episodes} episodes, {len(d.runs)} folders of search runs"),
            (
                "  prompts",
                f"{d.prompts:,} to train on, {d.held_out:,} held out, {d.fewest} to {d.examples} trials in each",
            ),
            ("  episodes", f"{episodes:,}, less what is kept in {self.store}"),
            ("method", self.method.name),
            *self.method.plan(),
            ("evaluation", f"{asked:,} questions before and after; {self.evaluation.rollouts} episodes a proposal"),
        ]
        return [*rows, ("  other tasks", ", ".join(task.name for task in self.transfer) or "none")]

    def requests(self, run: RunContext) -> Requests[float]:
        """Go on from where the run stands; returns the mean score (return, scaled to [0, 1]) of the trained proposer on
        held-out prompts.

        Raises:
            ConfigError: the data cannot be used; the model has no such layers.
            Stopped: a signal asked for it; everything is saved.
        """
        self._restore(run)
        client = self.models(None)
        chat = client.provider
        assert isinstance(chat, LocalChat)
        self._check_model(chat)
        tasks, data = yield Delegate(lambda ask: self._tasks(run, ask))
        replies = [self.task.questions.reply(question) for question in data.train]
        self.method.check(sum(reply is not None for reply in replies) if self.method.needs_replies else len(data.train))
        if self.method.needs_replies:
            check_replies(chat, data.train, replies)
        if run.iteration == 0 and not self.measured["before"]:
            write_questions(run.folder / "train.jsonl", data.train, replies)
            held_out = [self.task.questions.reply(question) for question in data.held_out]
            write_questions(run.folder / "held_out.jsonl", data.held_out, held_out)
        yield from self._evaluate(run, "before", client, tasks, 0, data.metrics())
        client.close()
        adapter = run.folder / ADAPTER
        first = len(tasks)  # the checkpoint before training; those of its steps come after it
        if not self.trained:
            scale = tasks[HELD_OUT].scale
            yield Delegate(lambda ask: self._train(run, ask, chat, data, replies, scale, adapter, first))
            if run.stop.requested:
                yield SafePoint(first + self.method.steps + 1, self.state_dict)
        tuned = self.models(str(adapter))
        run.status.llm = tuned.label
        yield from self._evaluate(run, "after", tuned, tasks, first + self.method.steps + 1, {})
        tuned.close()
        return self._conclude(run, tasks)

    def state_dict(self) -> State:
        """What is measured, and how far the training is."""
        return {
            "measured": {when: dict(tasks) for when, tasks in self.measured.items()},
            "meters": dict(self.meters),
            "step": self.step,
            "trained": self.trained,
        }

    def _restore(self, run: RunContext) -> None:
        if run.restored is not None:
            self.measured, self.meters = run.restored["measured"], run.restored["meters"]
            self.step, self.trained = run.restored["step"], run.restored["trained"]

    def _tasks(self, run: RunContext, ask: Callable[[Request], Any]) -> tuple[dict[str, _Asked], PromptDataset]:
        """Every task with its questions; and the data of the one that is trained on."""

        def prepared(task: SearchTask, dataset: Dataset, seeds: Seeds) -> PromptDataset:
            n = dataset.trials
            with run.progress(n, "trials", f"trials of {task.name}") as progress:

                def before_chunk(done: int) -> None:
                    progress.update(min(done, n))
                    if run.stop.requested:
                        ask(SafePoint(run.iteration, self.state_dict))

                return dataset.prepare(task, self.store, seeds, before_chunk)

        data = prepared(self.task, self.dataset, self.seeds.child("data"))
        tasks = {HELD_OUT: self._asked(self.task, data, self.rewards)}
        for task in self.transfer:
            other = prepared(
                task, self.dataset.for_transfer(self.evaluation.transfer_trials), self.seeds.child("transfer")
            )
            tasks[task.name] = self._asked(task, other, self.rewards.scaled(task.limits))
        return tasks, data

    def _asked(self, task: SearchTask, data: PromptDataset, rewards: Rewards) -> _Asked:
        judge = RewardFunction(
            task.questions, task.play, self.evaluation.rollouts, self.seeds.child(f"evaluation {task.name}")
        )
        try:
            scale = rewards.scale(data.train_values)
        except ConfigError as error:
            raise ConfigError(f"{task.name}: {error}") from error
        return _Asked(task, data.held_out, judge, rewards, scale)

    def _check_model(self, chat: LocalChat) -> None:
        """Before anything is played: whether the model can be asked, can answer, and can be trained."""
        questions, space = self.task.questions, self.task.questions.space
        middle = space.rounded((space.low + space.high) / 2)
        # A prompt that shows as little as a prompt may.
        question = questions.ask(ProposalExample(0, (ParameterTrial(middle, np.zeros(1)),), None))
        tokens = len(chat.encode_reply(question.messages, questions.write(middle, "")))
        if tokens > chat.reply_tokens:
            raise ConfigError(
                f"llm.max_tokens={chat.reply_tokens} cuts every valid reply: one without a reason takes about {tokens} "
                f"tokens of {chat.model} ({space.dim} numbers); raise llm.max_tokens"
            )
        trained = self.method.lora.check(empty_model(chat.model, chat.revision))
        log.info("%d numbers will be trained beside the weights of %s", trained, chat.model)

    def _evaluate(
        self,
        run: RunContext,
        when: str,
        client: ChatClient,
        tasks: dict[str, _Asked],
        iteration: int,
        more: dict[str, float],
    ) -> Requests[None]:
        """Measure what is not measured yet, and log all."""
        done = self.measured[when]
        if len(done) == len(tasks):
            return
        if when in self.meters:
            client.load_state_dict(self.meters[when])
        for number, (name, asked) in enumerate(tasks.items()):
            if name in done:
                continue
            log.info("%s %s: asking %d questions of %s", when, name, len(asked.questions), client.label)
            with run.saved_if_refused(iteration + number, self.state_dict):
                replies = yield Chat(client, chat_requests(asked.task.questions, asked.questions))
            # Under the same seeds before and after.
            attempts = asked.judge(asked.questions, [reply.text for reply in replies], "evaluation")
            done[name] = measure(attempts, asked.rewards, asked.scale)
            self.meters[when] = client.state_dict()
            if len(done) < len(tasks):
                yield SafePoint(iteration + number + 1, self.state_dict)
        metrics = dict(more)
        for name, measures in done.items():
            for measure_name, row in summarize(measures).items():
                if row["mean"] is not None:
                    metrics[f"{_tag(name)}/{measure_name}"] = row["mean"]
        updates = 0 if when == "before" else self.method.steps
        yield Log("evaluation", "updates", metrics | client.metrics(), {"updates": updates})
        yield SafePoint(iteration + len(tasks), self.state_dict, always=True)

    def _train(
        self,
        run: RunContext,
        ask: Callable[[Request], Any],
        chat: LocalChat,
        data: PromptDataset,
        replies: list[str | None],
        scale: Scale,
        adapter: Path,
        first: int,
    ) -> None:
        folder = run.folder / WEIGHTS
        resume = self._resume(folder)
        module = load_model("causal", chat.model, chat.revision, chat.device, chat.dtype)
        judge = RewardFunction(self.task.questions, self.task.play, self.rewards.rollouts, self.seeds.child("rewards"))

        def save(step: int) -> None:
            self.step = step
            ask(SafePoint(first + step, self.state_dict, always=True))

        seeds = self.seeds.child("method")
        job = TrainingJob(
            run, chat, module, data.train, replies, judge, self.rewards, scale, seeds, folder, resume, save
        )
        with quiet():
            trained = self.method.train(job)
        save_adapter(trained, adapter, chat.model, chat.revision, chat.identity["files"])
        self.trained = True
        save(self.method.steps + 1)
        shutil.rmtree(folder, ignore_errors=True)

    def _resume(self, folder: Path) -> Path | None:
        """The trainer's checkpoint that the run's names; others do not count and are removed."""
        wanted = folder / f"checkpoint-{self.step}"
        for path in folder.glob("checkpoint-*"):
            if path != wanted and int(path.name.rpartition("-")[2]) > self.step:
                shutil.rmtree(path)
        if self.step == 0:
            return None
        if not (wanted / "trainer_state.json").is_file():
            raise CheckpointError(
                f"{wanted} is missing, which the run's checkpoint names. Start this run anew with rerun=true, which "
                "moves the old content aside."
            )
        return wanted

    def _conclude(self, run: RunContext, tasks: dict[str, _Asked]) -> float:
        results: dict[str, Any] = {}
        for name, asked in tasks.items():
            before, after = self.measured["before"][name], self.measured["after"][name]
            without = baselines(asked.judge, asked.questions, asked.rewards, asked.scale, self.seeds.child("baselines"))
            results[name] = {
                "task": asked.task.name,
                "prompts": len(asked.questions),
                "scale": [asked.scale.low, asked.scale.high],
                "before": summarize(before),
                "after": summarize(after),
                "difference": difference(after, before),
                **{baseline: summarize(measures) for baseline, measures in without.items()},
            }
        write_json(run.folder / RESULTS, results)
        own = results[HELD_OUT]
        run.summary = {"adapter": str(run.folder / ADAPTER), "method": self.method.name, "steps": self.method.steps}
        for measure_name in ("valid_rate", "score", "improvement_rate", "return"):
            for when in ("before", "after"):
                run.summary[f"{measure_name}_{when}"] = own[when][measure_name]["mean"]
        read = Validity()
        for meter in self.meters.values():
            read.add_all(meter["validity"])
        run.summary |= {name.replace("/", "_"): value for name, value in read.metrics().items()}
        return float(own["after"]["score"]["mean"])


def _tag(name: str) -> str:
    return name if name == HELD_OUT else f"transfer_{name}"
