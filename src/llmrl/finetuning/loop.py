"""The loop of fine-tuning: build prompts from trials, evaluate, train, evaluate."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import CheckpointError, ConfigError
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.core.state_fields import StateFields
from llmrl.finetuning.proposer_evaluation import (
    EVALUATION_FILE,
    EvaluatedTask,
    ProposerEvaluation,
    summarize_differences,
    summarize_measures,
)
from llmrl.finetuning.rewards import ReplyEvaluator, ReturnScale, Rewards
from llmrl.finetuning.search_task import Dataset, PromptDataset, SearchTask, write_prompts
from llmrl.finetuning.training_methods import TrainingJob, TrainingMethod, check_target_replies
from llmrl.finetuning.trials import ParameterTrial, ProposalExample
from llmrl.llms.client import ChatClient
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.loading import load_meta_model, load_model
from llmrl.llms.local.lora import save_adapter
from llmrl.llms.validity import Validity
from llmrl.loops.compute_requests import Call, Delegate, Log, Request, Requests, SafePoint
from llmrl.run.artifacts import ADAPTER_FOLDER
from llmrl.run.files import write_json
from llmrl.run.run import Run

log = logging.getLogger(__name__)

TRAINED_TASK_KEY = "held_out"
"""Key of the training task in results and metrics. Transfer tasks have their names as keys."""
TRAINER_FOLDER = "trainer"
"""Folder of the trainer's checkpoints in the run folder."""


class FinetuneLoop(StateFields):
    """Loop that trains an adapter for the language model that proposes policy parameters.

    A checkpoint of the run contains the measurements and the step of the trainer's checkpoint with the weights. When a
    run is resumed, prompts are built again from the stored trials.

    Args:
        task: task to train on.
        transfer_tasks: other tasks, on which the model is only evaluated.
        dataset: settings of the training examples and prompts.
        rewards: rewards of replies.
        method: training method.
        evaluation: settings of the evaluation before and after training.
        client: client of the model.
        load_finetuned_client: function that returns the client of the model with the adapter in the given folder.
        trials_dir: folder of stored trials.
        seeds: root of the loop's random numbers.

    Attributes:
        measurements: measures of replies by phase (`before` or `after` training) and task.
        client_states: state of the client after its last evaluation, by phase.
        step: optimizer step of the trainer's checkpoint to which the run's checkpoint refers.
        is_trained: whether the training has finished.
    """

    _state_fields = ("measurements", "client_states", "step", "is_trained")

    def __init__(
        self,
        task: SearchTask,
        transfer_tasks: Sequence[SearchTask],
        *,
        dataset: Dataset,
        rewards: Rewards,
        method: TrainingMethod,
        evaluation: ProposerEvaluation,
        client: ChatClient,
        load_finetuned_client: Callable[[Path], ChatClient],
        trials_dir: Path,
        seeds: Seeds,
    ) -> None:
        self.task, self.transfer_tasks = task, list(transfer_tasks)
        self.dataset, self.rewards, self.method, self.evaluation = dataset, rewards, method, evaluation
        self.client, self.load_finetuned_client = client, load_finetuned_client
        self.trials_dir, self.seeds = trials_dir, seeds
        self.measurements: dict[str, dict[str, State]] = {"before": {}, "after": {}}
        self.client_states: dict[str, State] = {}
        self.step = 0
        self.is_trained = False

    def plan(self) -> list[tuple[str, str]]:
        """Return rows (label, description) that summarize the planned run."""
        dataset = self.dataset
        n_evaluations = dataset.held_out * (1 + len(self.transfer_tasks))
        n_episodes = dataset.episodes * (dataset.trials + len(self.transfer_tasks) * self.evaluation.transfer_trials)
        space = self.task.space
        trials_text = f"{dataset.trials:,} random trials of {dataset.episodes} episodes"
        prompts_text = f"{dataset.prompts:,} to train on, {dataset.held_out:,} held out"
        return [
            ("env", self.task.spec.name),
            ("policy", f"{space.name}, {space.dim} parameters in [{space.low.min():g}, {space.high.max():g}]"),
            ("model", self.client.label),
            ("data", f"{trials_text}, {len(dataset.runs or ())} folders of search runs"),
            ("  prompts", f"{prompts_text}, {dataset.min_examples} to {dataset.examples} trials in each"),
            ("  episodes", f"{n_episodes:,}, fewer if some are stored in {self.trials_dir}"),
            ("method", self.method.name),
            *self.method.plan(),
            (
                "evaluation",
                f"{n_evaluations:,} questions before and after; {self.evaluation.rollouts} episodes per proposal",
            ),
            ("  other tasks", ", ".join(task.name for task in self.transfer_tasks) or "none"),
        ]

    def requests(self, run: Run) -> Requests[float]:
        """Yield the requests of the loop, from the state in `run` on (`llmrl.loops.compute_requests`).

        The generator returns the mean score of the trained proposer on held-out prompts. A score is a return that is
        scaled to [0, 1].

        Raises:
            ConfigError: the training examples cannot be used, or lora.targets matches no layer of the model.
            Stopped: a signal requested a stop; the state has been saved.
        """
        if run.restored_state is not None:
            self.load_state_dict(run.restored_state)
        local_model = self.client.provider
        assert isinstance(local_model, LocalChat)
        self._check_model(local_model)
        tasks, prompts = yield Delegate(lambda answer: self._prepare_tasks(run, answer))
        target_replies = [self.task.prompt_format.make_target_reply(prompt) for prompt in prompts.train]
        self.method.check_prompt_count(
            sum(reply is not None for reply in target_replies) if self.method.needs_targets else len(prompts.train)
        )
        if self.method.needs_targets:
            check_target_replies(local_model, prompts.train, target_replies)
        if run.iteration == 0 and not self.measurements["before"]:
            write_prompts(run.folder / "train.jsonl", prompts.train, target_replies)
            held_out_replies = [self.task.prompt_format.make_target_reply(prompt) for prompt in prompts.held_out]
            write_prompts(run.folder / "held_out.jsonl", prompts.held_out, held_out_replies)
        yield from self._evaluate(run, "before", self.client, tasks, 0, prompts.metrics())
        self.client.close()
        # Iterations 0 to len(tasks) belong to the first evaluation; step k of training is `iteration_offset + k`.
        iteration_offset = len(tasks)
        if not self.is_trained:
            scale = tasks[TRAINED_TASK_KEY].scale
            yield Delegate(
                lambda answer: self._train(run, answer, local_model, prompts, target_replies, scale, iteration_offset)
            )
            if run.stop_flag.requested:
                yield SafePoint(iteration_offset + self.method.optimizer.steps + 1, self.state_dict)
        finetuned_client = self.load_finetuned_client(run.folder / ADAPTER_FOLDER)
        run.status.llm = finetuned_client.label
        yield from self._evaluate(
            run, "after", finetuned_client, tasks, iteration_offset + self.method.optimizer.steps + 1, {}
        )
        finetuned_client.close()
        return self._write_results(run, tasks)

    def _prepare_tasks(
        self, run: Run, answer: Callable[[Request], Any]
    ) -> tuple[dict[str, EvaluatedTask], PromptDataset]:
        """Return the evaluated tasks by name, and the training prompts; `answer` sends a request to the executor."""

        def prepare_prompts(task: SearchTask, dataset: Dataset, seeds: Seeds) -> PromptDataset:
            n_trials = dataset.trials
            with run.progress(n_trials, "trials", f"trials of {task.name}") as progress:

                def on_progress(n_finished: int) -> None:
                    progress.update(min(n_finished, n_trials))
                    if run.stop_flag.requested:
                        answer(SafePoint(run.iteration, self.state_dict))

                return dataset.prepare(task, self.trials_dir, seeds, on_progress)

        prompts = prepare_prompts(self.task, self.dataset, self.seeds.child("data"))
        tasks = {TRAINED_TASK_KEY: self._build_evaluated_task(self.task, prompts, self.rewards)}
        for task in self.transfer_tasks:
            dataset = self.dataset.for_transfer(self.evaluation.transfer_trials)
            transfer_prompts = prepare_prompts(task, dataset, self.seeds.child("transfer"))
            rewards = replace(self.rewards, low=task.return_limits[0], high=task.return_limits[1])
            tasks[task.name] = self._build_evaluated_task(task, transfer_prompts, rewards)
        return tasks, prompts

    def _build_evaluated_task(self, task: SearchTask, prompts: PromptDataset, rewards: Rewards) -> EvaluatedTask:
        evaluator = ReplyEvaluator(
            task.prompt_format, task.play, self.evaluation.rollouts, self.seeds.child(f"evaluation {task.name}")
        )
        try:
            scale = rewards.scale(prompts.train_values)
        except ConfigError as error:
            raise ConfigError(f"{task.name}: {error}") from error
        return EvaluatedTask(task.name, prompts.held_out, evaluator, rewards, scale)

    def _check_model(self, local_model: LocalChat) -> None:
        """Raise ConfigError if the adapter matches no layer of the model or `llm.max_tokens` is too small."""
        prompt_format, space = self.task.prompt_format, self.task.space
        center = space.round_values((space.low + space.high) / 2)
        prompt = prompt_format.make_prompt(ProposalExample(0, (ParameterTrial(center, np.zeros(1)),), target=None))
        n_tokens = len(local_model.encode_reply(prompt.messages, prompt_format.format_reply(center, "")))
        if n_tokens > local_model.settings.max_tokens:
            raise ConfigError(
                f"llm.max_tokens={local_model.settings.max_tokens} is too small for a valid reply: {space.dim} numbers "
                f"without a reason take about {n_tokens} tokens of {local_model.model}. Set llm.max_tokens to "
                f"{n_tokens} or more"
            )
        n_trainable = self.method.lora.count_trainable_parameters(
            load_meta_model(local_model.model, local_model.settings.revision)
        )
        log.info(
            "LoRA adds %d trainable parameters to %s, whose own weights stay frozen", n_trainable, local_model.model
        )

    def _evaluate(
        self,
        run: Run,
        phase: str,
        client: ChatClient,
        tasks: dict[str, EvaluatedTask],
        first_iteration: int,
        extra_metrics: dict[str, float],
    ) -> Requests[None]:
        """Evaluate the remaining tasks of `phase`, then log all metrics; task i is iteration `first_iteration + i`."""
        metrics_by_task = self.measurements[phase]
        if len(metrics_by_task) == len(tasks):
            return
        if phase in self.client_states:
            client.load_state_dict(self.client_states[phase])
        for i, (name, task) in enumerate(tasks.items()):
            if name in metrics_by_task:
                continue
            log.info("%s %s: sending %d prompts to %s", phase, name, len(task.prompts), client.label)
            with run.save_on_llm_error(first_iteration + i, self.state_dict):
                replies = yield Call(partial(client.chat, task.requests()), is_long=True)
            # Episodes have the same seeds before and after training, so results are compared in pairs.
            metrics_by_task[name] = task.measure_replies([reply.text for reply in replies])
            self.client_states[phase] = client.state_dict()
            if len(metrics_by_task) < len(tasks):
                yield SafePoint(first_iteration + i + 1, self.state_dict)
        logged_metrics = dict(extra_metrics)
        for name, metrics in metrics_by_task.items():
            prefix = name if name == TRAINED_TASK_KEY else f"transfer_{name}"
            for metric_name, statistics in summarize_measures(metrics).items():
                if statistics["mean"] is not None:
                    logged_metrics[f"{prefix}/{metric_name}"] = statistics["mean"]
        updates = 0 if phase == "before" else self.method.optimizer.steps
        yield Log("evaluation", "updates", logged_metrics | client.metrics(), {"updates": updates})
        yield SafePoint(first_iteration + len(tasks), self.state_dict, always=True)

    def _train(
        self,
        run: Run,
        answer: Callable[[Request], Any],
        local_model: LocalChat,
        prompts: PromptDataset,
        target_replies: list[str | None],
        scale: ReturnScale,
        iteration_offset: int,
    ) -> None:
        """Train from the last checkpoint on, and save the adapter; step k is iteration `iteration_offset + k`."""
        folder = run.folder / TRAINER_FOLDER
        resume_path = self._select_checkpoint_and_prune(folder)
        module = load_model(
            "causal", local_model.model, local_model.settings.revision, local_model.device, local_model.settings.dtype
        )
        evaluator = ReplyEvaluator(
            self.task.prompt_format, self.task.play, self.rewards.rollouts, self.seeds.child("rewards")
        )

        def save_checkpoint(step: int) -> None:
            self.step = step
            answer(SafePoint(iteration_offset + step, self.state_dict, always=True))

        job = TrainingJob(
            run=run,
            chat=local_model,
            module=module,
            prompts=prompts.train,
            target_replies=target_replies,
            evaluator=evaluator,
            rewards=self.rewards,
            scale=scale,
            seeds=self.seeds.child("method"),
            folder=folder,
            resume_path=resume_path,
            save_checkpoint=save_checkpoint,
        )
        model = self.method.train(job)
        revision, file_digests = local_model.settings.revision, local_model.identity["files"]
        save_adapter(model.save_pretrained, run.folder / ADAPTER_FOLDER, local_model.model, revision, file_digests)
        self.is_trained = True
        save_checkpoint(self.method.optimizer.steps + 1)
        shutil.rmtree(folder, ignore_errors=True)

    def _select_checkpoint_and_prune(self, folder: Path) -> Path | None:
        """Return the trainer's checkpoint of step `self.step` (None for step 0), and delete those of later steps."""
        checkpoint = folder / f"checkpoint-{self.step}"
        for path in folder.glob("checkpoint-*"):
            if path != checkpoint and int(path.name.rpartition("-")[2]) > self.step:
                shutil.rmtree(path)
        if self.step == 0:
            return None
        if not (checkpoint / "trainer_state.json").is_file():
            raise CheckpointError(
                f"{checkpoint}, to which the run's checkpoint refers, is missing. Start this run again from the "
                "beginning with rerun=true, which moves the old content to a backup folder."
            )
        return checkpoint

    def _write_results(self, run: Run, tasks: dict[str, EvaluatedTask]) -> float:
        """Write the results of all tasks and the run's summary; return the training task's score after training."""
        results: dict[str, Any] = {}
        for name, task in tasks.items():
            initial, final = self.measurements["before"][name], self.measurements["after"][name]
            baselines = task.measure_baselines(self.seeds.child("baselines"))
            results[name] = {
                "task": task.name,
                "prompts": len(task.prompts),
                "scale": [task.scale.low, task.scale.high],
                "before": summarize_measures(initial),
                "after": summarize_measures(final),
                "difference": summarize_differences(final, initial),
                **{baseline: summarize_measures(metrics) for baseline, metrics in baselines.items()},
            }
        write_json(run.folder / EVALUATION_FILE, results)
        main_results = results[TRAINED_TASK_KEY]
        run.summary = {
            "adapter": str(run.folder / ADAPTER_FOLDER),
            "method": self.method.name,
            "steps": self.method.optimizer.steps,
        }
        for measure_name in ("valid_rate", "score", "improvement_rate", "return"):
            for phase in ("before", "after"):
                run.summary[f"{measure_name}_{phase}"] = main_results[phase][measure_name]["mean"]
        validity = Validity()
        for client_state in self.client_states.values():
            validity.add_counts(client_state["validity"])
        run.summary |= {name.replace("/", "_"): value for name, value in validity.metrics().items()}
        return float(main_results["after"]["score"]["mean"])
