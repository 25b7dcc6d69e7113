"""Sampling of replies by a vLLM server, which loads the adapter that this process trains."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from llmrl.core.addresses import check_transport_security
from llmrl.core.errors import CallInterrupted, LLMError
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.llms.cancellable_calls import PendingCall, RequestBatch
from llmrl.llms.local.generation import TokenPrompt
from llmrl.llms.retry import RETRIABLE_STATUSES, Retry, TransientError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class VLLMSampler:
    """Settings of a vLLM server that samples replies; meanings, units and ranges: `conf/llm/sampler/vllm.yaml`.

    Raises:
        ConfigError: base_url is not an http(s) address.
    """

    base_url: str
    model: str | None
    adapter_dir: str | None
    concurrency: PositiveInt
    timeout: PositiveFloat
    retries: NonNegativeInt
    max_staleness: NonNegativeInt
    max_importance: PositiveFloat

    def __post_init__(self) -> None:
        check_transport_security(self.base_url, allows_plain_http=True, option_name="llm.sampler.base_url")


class VLLMClient:
    """Client that sends prompts as token ids, and receives token ids with their log-probabilities.

    The server samples from the complete distribution at temperature 1. If its version of an adapter is more than
    `VLLMSampler.max_staleness` updates old, it loads the new version under a new name and unloads the old one.

    Args:
        settings: options.
        model: name or folder of the model, which identifies it on the server unless `settings.model` is set.
        write_adapter: function that writes the adapter with a given name into a folder, in peft's format.
    """

    def __init__(self, settings: VLLMSampler, model: str, write_adapter: Callable[[str, Path], None]) -> None:
        self.settings, self._model, self._write_adapter = settings, settings.model or model, write_adapter
        self._url = settings.base_url.rstrip("/")
        self._retry = Retry(settings.retries)
        self._client = httpx.Client(timeout=settings.timeout, limits=httpx.Limits(max_connections=None))
        self._client_id = uuid.uuid4().hex[:8]  # distinguishes the adapters of runs that use the same server
        self._adapter_folder: Path | None = None
        self._version = 0
        self._version_by_adapter: dict[str, int] = {}  # version of each adapter on the server

    def check(self) -> None:
        """Raise LLMError if the server cannot be reached or does not serve the model."""
        try:
            response = self._client.get(f"{self._url}/models", timeout=min(self.settings.timeout, 15.0))
            served_models = [model["id"] for model in response.json()["data"]]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise LLMError(
                f"no answer from the vLLM server at {self._url} ({error or type(error).__name__}). Start it with "
                "scripts/vllm_server.sh, or set llm.sampler.base_url to its address"
            ) from None
        if self._model not in served_models:
            raise LLMError(
                f"the vLLM server at {self._url} serves {', '.join(served_models)}, not {self._model}; start it with "
                "llm.model, or set llm.sampler.model to the name of the same weights"
            )

    def increment_adapter_version(self) -> None:
        """Increase the version of all adapters, because their weights have changed."""
        self._version += 1

    def sample(
        self, prompts: Sequence[TokenPrompt], max_tokens: int, should_stop: Callable[[], bool] = lambda: False
    ) -> list[tuple[list[int], np.ndarray]]:
        """Return token ids of each reply and their log-probabilities, [n_tokens] float32.

        Args:
            prompts: prompts; the server's seed for each prompt is drawn from the prompt's `stream`.
            max_tokens: maximum number of tokens of a reply, >= 1.
            should_stop: function that returns whether the run is stopping.

        Raises:
            LLMError: the server cannot be reached, refuses a request, or does not return token ids.
            CallInterrupted: the run is stopping, and some replies have not arrived within a few seconds.
        """
        for name in sorted({prompt.adapter for prompt in prompts}):
            self._load_adapter(name)

        def complete(i: int, call: PendingCall) -> tuple[list[int], np.ndarray]:
            return self._request_completion(prompts[i], max_tokens)

        batch = RequestBatch(complete, len(prompts), self.settings.concurrency)
        batch.wait(should_stop)
        samples = [answer for answer in batch.answers if answer is not None]
        if len(samples) < len(prompts):
            raise CallInterrupted("the run is stopping, so it does not wait for the vLLM server")
        return samples

    def close(self) -> None:
        """Unload the adapters from the server and delete their files; `sample` loads them again."""
        for name, version in self._version_by_adapter.items():
            try:
                self._unload_adapter(name, version)
            except LLMError as error:  # the server may have stopped already
                logger.warning("an adapter stays on the vLLM server: %s", error)
        self._version_by_adapter.clear()
        if self._adapter_folder is not None:
            shutil.rmtree(self._adapter_folder, ignore_errors=True)
            self._adapter_folder = None

    def _load_adapter(self, name: str) -> None:
        """Load the current version of an adapter into the server if none is loaded or the loaded one is too old."""
        loaded_version = self._version_by_adapter.get(name)
        if loaded_version is not None and self._version - loaded_version <= self.settings.max_staleness:
            return
        if self._adapter_folder is None:
            self._adapter_folder = Path(tempfile.mkdtemp(prefix="llmrl-adapters-", dir=self.settings.adapter_dir))
        folder = self._adapter_folder / self._make_served_name(name, self._version)
        self._write_adapter(name, folder)
        self._post("load_lora_adapter", {"lora_name": folder.name, "lora_path": str(folder.resolve())})
        self._version_by_adapter[name] = self._version
        if loaded_version is not None:
            self._unload_adapter(name, loaded_version)
            shutil.rmtree(self._adapter_folder / self._make_served_name(name, loaded_version), ignore_errors=True)

    def _unload_adapter(self, name: str, version: int) -> None:
        self._post("unload_lora_adapter", {"lora_name": self._make_served_name(name, version)})

    def _make_served_name(self, name: str, version: int) -> str:
        """Return the name of a version of an adapter on the server."""
        return "-".join(("llmrl", self._client_id, name.replace("/", "-") or "shared", str(version)))

    def _request_completion(self, prompt: TokenPrompt, max_tokens: int) -> tuple[list[int], np.ndarray]:
        """Return token ids of one sampled reply and their log-probabilities, [n_tokens] float32."""
        assert prompt.stream is not None
        body = {
            "model": self._make_served_name(prompt.adapter, self._version_by_adapter[prompt.adapter]),
            "prompt": list(prompt.tokens),
            "max_tokens": max_tokens,
            "seed": int(prompt.stream.integers(2**31)),
            "logprobs": 0,  # log-probabilities of the sampled tokens only
            "return_token_ids": True,
            # Set explicitly, because the defaults come from the model's generation config.
            **{"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
        }
        response = self._post("completions", body)
        try:
            choice = response["choices"][0]
            tokens = [int(token) for token in choice["token_ids"]]
            log_probs = np.array(choice["logprobs"]["token_logprobs"], dtype=np.float32)
        except (LookupError, TypeError, ValueError):
            raise LLMError(
                f"{self._url}/completions returned no token ids or log-probabilities; llm/sampler=vllm needs vLLM "
                "0.10.2 or later"
            ) from None
        if not tokens or log_probs.shape != (len(tokens),) or not np.isfinite(log_probs).all():
            raise LLMError(f"{self._url}/completions returned {len(tokens)} tokens with log-probabilities {log_probs}")
        return tokens, log_probs

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON response to a request; None if it is not JSON, as after loading or unloading an adapter."""

        def attempt(attempt_number: int) -> Any:
            url = f"{self._url}/{path}"
            try:
                response = self._client.post(url, json=body)
            except httpx.HTTPError as error:
                raise TransientError(f"{url}: {error or type(error).__name__}") from None
            if response.status_code in RETRIABLE_STATUSES:
                raise TransientError(f"{url} returned HTTP {response.status_code}: {response.text[:500]}")
            if response.status_code == httpx.codes.NOT_FOUND and path.endswith("lora_adapter"):
                raise LLMError(
                    f"{url} was not found; start the server with --enable-lora and "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True (scripts/vllm_server.sh)"
                )
            if response.is_error:
                raise LLMError(f"{url} returned HTTP {response.status_code}: {response.text[:500]}")
            try:
                return response.json()
            except ValueError:
                return None

        return self._retry(attempt, time.sleep)
