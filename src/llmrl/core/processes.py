"""The processes that compute one run together: who they are, and what they tell each other.

All of them run the same loop with the same seeds, so they simulate the same games, and only the work of a costly model
is shared: each computes its `share` of a batch, and `gather` or `sum_` gives all of them the whole. What they hold is
therefore equal at all times, up to the last bit, and a run is the same function of (config, seed) as in one process.

Who starts the processes tells each of them who it is by the variables RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT, as `torchrun` does.
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

from llmrl.core.errors import ConfigError, ProcessesError, short_error

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT_S = 1800.0
"""How long a process waits for another: longer than any of them takes to save a large model."""
_BUCKET_BYTES = 2**26
_FAILED = "llmrl/failed"
_NEWS_S = 5.0  # how long who lost a process waits to be told why
_LEAVE_S = 5.0


class Processes:
    """One process alone; `join` makes what is several.

    Attributes:
        rank: which of them this one is, 0 .. world_size - 1. The first owns the run folder and talks to the user.
        world_size: how many they are.
    """

    rank = 0
    world_size = 1

    @staticmethod
    def join() -> Processes:
        """The processes this one was started with; waits until all are there. Asked again, it gives the same.

        Raises:
            ConfigError: the variables of the environment make no sense.
            ProcessesError: the others did not come.
        """
        global _joined
        if _joined is None:
            rank, world_size = placed()
            _joined = Processes() if world_size == 1 else _Group(rank, world_size)
        return _joined

    @staticmethod
    def joined() -> Processes:
        """What `join` gave before; this process alone if it was not asked."""
        return Processes() if _joined is None else _joined

    @property
    def leads(self) -> bool:
        """Whether this is the first process."""
        return self.rank == 0

    def share(self, n: int) -> slice:
        """This process's part of a list of n, in the order of ranks; sizes differ by at most 1, and may be 0."""
        return slice(n * self.rank // self.world_size, n * (self.rank + 1) // self.world_size)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows (first axis) of all processes in the order of ranks, the same everywhere; counts may differ, what a
        row is may not. No gradient flows through it."""
        return tensor

    def sum_(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace each tensor by its sum over the processes, which give as many, of the same shapes."""

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum `.grad` over the processes. What has none in some counts as zero there; none anywhere stays none."""

    def everyone(self, value: Any) -> list[Any]:
        """What each process gives, plain data, in the order of ranks."""
        return [value]

    def agree(self, value: Any) -> Any:
        """What the first process gives, plain data."""
        return self.everyone(value)[0]

    def barrier(self) -> None:
        """Wait until all processes are here."""

    def fail(self, error: BaseException) -> None:
        """Leave because of `error`; the others are told as soon as they notice that this one is gone."""

    def leave(self) -> None:
        """Leave with the others, at the end."""


class _Group(Processes):
    """Several, over torch.distributed: gloo, and nccl for what is on GPUs."""

    def __init__(self, rank: int, world_size: int) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        self.rank, self.world_size = rank, world_size
        gpus = torch.cuda.is_available() and dist.is_nccl_available()
        wait = timedelta(seconds=TIMEOUT_S)
        try:
            if gpus:
                torch.cuda.set_device(local_device("cuda"))
            self._store: Store
            self._store, _, _ = next(rendezvous("env://", rank, world_size, timeout=wait))
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if gpus else "gloo",
                store=PrefixStore("llmrl", self._store),
                rank=rank,
                world_size=world_size,
                timeout=wait,
            )
            # What is no tensor does not pass through GPUs.
            self._plain = dist.new_group(backend="gloo", timeout=wait) if gpus else dist.group.WORLD
        except (RuntimeError, ValueError, OSError) as error:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise ProcessesError(
                f"process {rank} of {world_size} could not meet the others at {where}: {short_error(error)}"
            ) from error

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        import torch
        import torch.distributed as dist

        rows = tensor.detach().contiguous()
        counts, one = self.everyone(len(rows)), rows.shape[1:]
        # As bytes: not every backend knows every type. As many for each process: not every one can send fewer.
        own = torch.zeros(max(counts), prod(one) * rows.element_size(), dtype=torch.uint8, device=rows.device)
        own[: len(rows)] = rows.reshape(len(rows), prod(one)).view(torch.uint8)
        found = [torch.empty_like(own) for _ in counts]
        with self._together():
            dist.all_gather(found, own)
        whole = torch.cat([part[:count] for part, count in zip(found, counts, strict=True)])
        return whole.view(rows.dtype).reshape(sum(counts), *one)

    def sum_(self, tensors: Iterable[torch.Tensor]) -> None:
        import torch
        import torch.distributed as dist

        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
            if flat.dtype in (torch.float16, torch.bfloat16):
                flat = flat.float()  # a sum of short numbers would lose what the processes have in common
            with self._together():
                dist.all_reduce(flat)
            with torch.no_grad():
                for tensor, part in zip(bucket, torch.split(flat, [t.numel() for t in bucket]), strict=True):
                    tensor.copy_(part.view_as(tensor))

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        import torch

        # Those that are divided among the processes are summed as they are computed.
        parameters = [p for p in parameters if not hasattr(p, "to_local")]
        there = torch.tensor([p.grad is not None for p in parameters], dtype=torch.float32)
        self.sum_([there])
        summed = [p for p, count in zip(parameters, there.tolist(), strict=True) if count]
        for parameter in summed:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.sum_([p.grad for p in summed if p.grad is not None])

    def everyone(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        found: list[Any] = [None] * self.world_size
        with self._together():
            dist.all_gather_object(found, value, group=self._plain)
        return found

    def barrier(self) -> None:
        import torch.distributed as dist

        with self._together():
            dist.barrier(group=self._plain)

    def fail(self, error: BaseException) -> None:
        if isinstance(error, ProcessesError):
            return  # another one has failed
        cause = error.__cause__ if isinstance(error, SystemExit) and error.__cause__ else error
        said = f"process {self.rank} of {self.world_size} on {socket.gethostname()} failed: {short_error(cause)}"
        try:
            self._store.compare_set(_FAILED, "", said + "\n" + "".join(traceback.format_exception(cause)))
        except RuntimeError:
            return  # who keeps the store is gone already

    def leave(self) -> None:
        import torch.distributed as dist

        try:
            dist.monitored_barrier(group=self._plain, timeout=timedelta(seconds=_LEAVE_S))
        except RuntimeError:
            return  # nothing depends on it: the run is over
        dist.destroy_process_group()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Around an exchange: that another process is gone is told as what it is."""
        try:
            yield
        except RuntimeError as error:
            try:
                self._store.wait([_FAILED], timedelta(seconds=_NEWS_S))
                said, _, details = self._store.get(_FAILED).decode().partition("\n")
            except RuntimeError:
                said, details = f"another of this run's {self.world_size} processes is gone without a word", ""
            lost = ProcessesError(said)
            lost.add_note(details)
            raise lost from error


_joined: Processes | None = None


def placed() -> tuple[int, int]:
    """Rank and number of the processes this one was started with, by the environment; (0, 1) alone.

    Raises:
        ConfigError: the variables of the environment make no sense.
    """
    world_size = _number("WORLD_SIZE", 1)
    if world_size <= 1:
        return 0, 1
    if absent := [name for name in VARIABLES if not os.environ.get(name)]:
        raise ConfigError(
            f"WORLD_SIZE={world_size}, and {', '.join(absent)} not set: start several processes with `torchrun "
            f"--standalone --nproc-per-node {world_size} -m llmrl.cli.train ...`, or unset WORLD_SIZE"
        )
    rank = _number("RANK", 0)
    if rank >= world_size:
        raise ConfigError(f"RANK={rank} is no place among WORLD_SIZE={world_size} processes: 0 to {world_size - 1}")
    return rank, world_size


def local_device(device: str) -> str:
    """The torch device of this process, where `cuda` means any GPU of this machine: the one of its place here.

    Raises:
        ConfigError: there are fewer GPUs here than processes.
    """
    if device != "cuda" or placed()[1] == 1:
        return device
    import torch

    place, gpus = _number("LOCAL_RANK", 0), torch.cuda.device_count()
    if gpus == 1 and _number("LOCAL_WORLD_SIZE", 1) > 1 and "SLURM_PROCID" in os.environ:
        return "cuda:0"  # the scheduler shows each process its own GPU alone
    if place >= gpus:
        raise ConfigError(
            f"process {place} of this machine has no GPU of its own: torch sees {gpus}; start as many processes as "
            "there are GPUs (torchrun --nproc-per-node), or use hardware=cpu"
        )
    return f"cuda:{place}"


@contextmanager
def leaving_together() -> Iterator[None]:
    """Around what a program does: at its end the processes part, and if one fails, the others learn why."""
    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128
        # Told to stop, all of them have.
        if stopped:
            Processes.joined().leave()
        else:
            Processes.joined().fail(error)
        raise
    Processes.joined().leave()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "") or str(default)
    if not text.isdecimal():
        raise ConfigError(f"{name}={text!r} in the environment: a whole number >= 0 is needed")
    return int(text)


def _buckets(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Tensors in the order given, those of one type on one device together as far as memory allows."""
    kinds: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        bucket: list[torch.Tensor] = []
        size = 0
        for tensor in alike:
            if bucket and size + tensor.numel() * tensor.element_size() > _BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
            bucket.append(tensor)
            size += tensor.numel() * tensor.element_size()
        if bucket:
            yield bucket
