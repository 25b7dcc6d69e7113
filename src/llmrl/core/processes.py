"""The group of processes that compute one run together, and their collective operations.

All processes run the same loop with the same seeds and simulate the same games. Only the computations of large models
are divided: each process computes its `local_slice` of a batch, and `gather` or `all_reduce` returns the full result to
all. The processes therefore have equal states at all times, bit for bit on machines of the same type with the same
library builds, and a run is the same function of (config, seed) as in one process.

The launcher sets the environment variables RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as `torchrun`
does.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import prod
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import ConfigError, ProcessesError, summarize_error

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT_S = 1800.0
"""Maximum seconds that a process waits for another one, which may be saving a large model."""
_MAX_BUCKET_BYTES = 2**26  # maximum size of the tensors that are reduced together
_ERROR_KEY = "llmrl/failed"  # key of the error message in the store that all processes share
_ERROR_TIMEOUT_S = 5.0  # maximum seconds to wait for the error message of a process that has ended
_LEAVE_TIMEOUT_S = 5.0  # maximum seconds to wait for the other processes at the end of a run


class ProcessGroup:
    """The group of a single process, and the base class of groups of several (`join`).

    All processes must call the same collective operations in the same order. They must log the same metrics, except
    those under `time/` and `usage/`; a number that differs between processes must be reduced before it is logged.

    Attributes:
        rank: index of this process, 0 .. world_size - 1. Process 0 owns the run folder and prints messages.
        world_size: number of processes.
    """

    rank = 0
    world_size = 1

    @staticmethod
    def join() -> ProcessGroup:
        """Return the group of this process when all its processes have joined; later calls return the same group.

        Raises:
            ConfigError: the environment variables are invalid.
            ProcessesError: the other processes could not be reached in time.
        """
        global _process_group
        if _process_group is None:
            rank, world_size = read_rank_and_world_size()
            _process_group = ProcessGroup() if world_size == 1 else _TorchProcessGroup(rank, world_size)
        return _process_group

    @staticmethod
    def get_joined() -> ProcessGroup:
        """Return the group that `join` returned; if it was not called, the group of this process alone."""
        return ProcessGroup() if _process_group is None else _process_group

    @property
    def is_main(self) -> bool:
        """True in process 0, which owns the run folder."""
        return self.rank == 0

    def local_slice(self, n: int) -> slice:
        """Return this process's slice of n items, in the order of ranks. Sizes differ by at most 1 and may be 0."""
        return slice(n * self.rank // self.world_size, n * (self.rank + 1) // self.world_size)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the concatenated rows (first axis) of all processes, in the order of ranks, without gradients.

        The number of rows may differ between processes; their shape and dtype may not.
        """
        return tensor

    def all_reduce(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace each tensor by its sum over all processes, which must pass tensors of the same shapes."""

    def all_reduce_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum `.grad` over all processes. A missing gradient counts as zero, or stays None if no process has it."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the values (plain data) that all processes pass, in the order of ranks."""
        return [value]

    def barrier(self) -> None:
        """Wait until all processes have called this."""

    def leave_with_error(self, error: BaseException) -> None:
        """Store `error` for the other processes, whose next collective operation raises it as a `ProcessesError`."""

    def leave(self) -> None:
        """Leave the group at the end of the run; wait at most a few seconds until all processes have called this."""


class _TorchProcessGroup(ProcessGroup):
    """Several processes, connected by torch.distributed: nccl for tensors on GPUs, gloo for everything else."""

    def __init__(self, rank: int, world_size: int) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        self.rank, self.world_size = rank, world_size
        uses_gpus = torch.cuda.is_available() and dist.is_nccl_available()
        timeout = timedelta(seconds=TIMEOUT_S)
        try:
            if uses_gpus:
                torch.cuda.set_device(local_device("cuda"))
            self._store: Store
            self._store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timeout))
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if uses_gpus else "gloo",
                store=PrefixStore("llmrl", self._store),
                rank=rank,
                world_size=world_size,
                timeout=timeout,
            )
            # Plain data is exchanged by gloo, without a copy to the GPU.
            self._object_group = dist.new_group(backend="gloo", timeout=timeout) if uses_gpus else dist.group.WORLD
        except (RuntimeError, ValueError, OSError) as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise ProcessesError(
                f"process {rank} of {world_size} could not connect to the others at {address}: {summarize_error(error)}"
            ) from error

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        import torch
        import torch.distributed as dist

        rows = tensor.detach().contiguous()
        row_counts, row_shape = self.all_gather_object(len(rows)), rows.shape[1:]
        # Tensors are sent as bytes, because not every backend supports every dtype, and padded to equal sizes, because
        # not every backend supports unequal ones.
        row_size = prod(row_shape)
        buffer = torch.zeros(max(row_counts), row_size * rows.element_size(), dtype=torch.uint8, device=rows.device)
        buffer[: len(rows)] = rows.reshape(len(rows), row_size).view(torch.uint8)
        buffers = [torch.empty_like(buffer) for _ in row_counts]
        with self._translate_errors():
            dist.all_gather(buffers, buffer)
        full_tensor = torch.cat([buffer[:count] for buffer, count in zip(buffers, row_counts, strict=True)])
        return full_tensor.view(rows.dtype).reshape(sum(row_counts), *row_shape)

    def all_reduce(self, tensors: Iterable[torch.Tensor]) -> None:
        import torch
        import torch.distributed as dist

        for bucket in _iter_buckets(tensors):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
            if flat.dtype in (torch.float16, torch.bfloat16):
                flat = flat.float()  # rounding errors of a sum in 16 bits would be too large
            with self._translate_errors():
                dist.all_reduce(flat)
            with torch.no_grad():
                for tensor, flat_sum in zip(bucket, torch.split(flat, [t.numel() for t in bucket]), strict=True):
                    tensor.copy_(flat_sum.view_as(tensor))

    def all_reduce_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        import torch

        parameters = list(parameters)
        gradient_counts = torch.tensor([p.grad is not None for p in parameters], dtype=torch.float32)
        self.all_reduce([gradient_counts])
        reduced_parameters = [p for p, count in zip(parameters, gradient_counts.tolist(), strict=True) if count]
        for parameter in reduced_parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.all_reduce([p.grad for p in reduced_parameters if p.grad is not None])

    def all_gather_object(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        values: list[Any] = [None] * self.world_size
        with self._translate_errors():
            dist.all_gather_object(values, value, group=self._object_group)
        return values

    def barrier(self) -> None:
        import torch.distributed as dist

        with self._translate_errors():
            dist.barrier(group=self._object_group)

    def leave_with_error(self, error: BaseException) -> None:
        if isinstance(error, ProcessesError):
            return  # another process has failed and has stored its message
        cause = error.__cause__ if isinstance(error, SystemExit) and error.__cause__ else error
        message = f"process {self.rank} of {self.world_size} on {socket.gethostname()} failed: {summarize_error(cause)}"
        try:
            self._store.compare_set(_ERROR_KEY, "", message + "\n" + "".join(traceback.format_exception(cause)))
        except RuntimeError:
            return  # the process that hosts the store has ended

    def leave(self) -> None:
        import torch.distributed as dist

        try:
            dist.monitored_barrier(group=self._object_group, timeout=timedelta(seconds=_LEAVE_TIMEOUT_S))
        except RuntimeError:
            return  # harmless: the run is finished
        dist.destroy_process_group()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Return a context manager for a collective operation that raises the stored error of a failed process."""
        try:
            yield
        except RuntimeError as error:
            try:
                self._store.wait([_ERROR_KEY], timedelta(seconds=_ERROR_TIMEOUT_S))
                message, _, details = self._store.get(_ERROR_KEY).decode().partition("\n")
            except RuntimeError:
                message, details = f"one of this run's {self.world_size} processes ended without an error message", ""
            process_error = ProcessesError(message)
            process_error.add_note(details)
            raise process_error from error


_process_group: ProcessGroup | None = None


def read_rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes, from the environment; (0, 1) for a single process.

    Raises:
        ConfigError: the environment variables are invalid.
    """
    world_size = _read_integer_variable("WORLD_SIZE", 1)
    if world_size <= 1:
        return 0, 1
    if missing_names := [name for name in LAUNCH_VARIABLES if not os.environ.get(name)]:
        raise ConfigError(
            f"WORLD_SIZE={world_size}, and {', '.join(missing_names)} not set: start several processes with `torchrun "
            f"--standalone --nproc-per-node {world_size} -m llmrl.cli.train ...`, or unset WORLD_SIZE"
        )
    rank = _read_integer_variable("RANK", 0)
    if rank >= world_size:
        raise ConfigError(f"RANK={rank} must be in 0..{world_size - 1} for WORLD_SIZE={world_size} processes")
    return rank, world_size


def local_device(device: str) -> str:
    """Return the torch device of this process: `device`, or the GPU of its local rank if several processes use `cuda`.

    Raises:
        ConfigError: this machine has fewer GPUs than processes.
    """
    if device != "cuda" or read_rank_and_world_size()[1] == 1:
        return device
    import torch

    rank, n_gpus = _read_integer_variable("LOCAL_RANK", 0), torch.cuda.device_count()
    if n_gpus == 1 and _read_integer_variable("LOCAL_WORLD_SIZE", 1) > 1 and "SLURM_PROCID" in os.environ:
        return "cuda:0"  # the scheduler shows each process only its own GPU
    if rank >= n_gpus:
        raise ConfigError(
            f"process {rank} of this machine has no GPU of its own: torch sees {n_gpus}; start as many processes as "
            "there are GPUs (torchrun --nproc-per-node), or use hardware=cpu"
        )
    return f"cuda:{rank}"


@contextmanager
def leave_group_at_exit() -> Iterator[None]:
    """Return a context manager for a program: leave the group at its end, or pass its error to the other processes."""
    try:
        yield
    except BaseException as error:
        # A signal stops all processes, so they leave together.
        was_signaled = isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128
        if was_signaled:
            ProcessGroup.get_joined().leave()
        else:
            ProcessGroup.get_joined().leave_with_error(error)
        raise
    ProcessGroup.get_joined().leave()


def _read_integer_variable(name: str, default: int) -> int:
    text = os.environ.get(name, "") or str(default)
    if not text.isdecimal():
        raise ConfigError(f"the environment variable {name}={text!r} must be a whole number >= 0")
    return int(text)


def _iter_buckets(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield lists of tensors of one dtype and device, of `_MAX_BUCKET_BYTES` at most; a larger tensor is alone."""
    tensors_by_type: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        tensors_by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for tensors_of_type in tensors_by_type.values():
        bucket: list[torch.Tensor] = []
        size = 0
        for tensor in tensors_of_type:
            size += tensor.nbytes
            if bucket and size > _MAX_BUCKET_BYTES:
                yield bucket
                bucket, size = [], tensor.nbytes
            bucket.append(tensor)
        yield bucket
