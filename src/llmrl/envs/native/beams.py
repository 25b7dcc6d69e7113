"""Beams of a whole batch: who fires, what each line of cells meets first, and what is hit."""

from __future__ import annotations

import torch

from llmrl.envs.native import sites


def triggered(
    asked: torch.Tensor, alive: torch.Tensor, wait: torch.Tensor, cooldown: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Who fires, and everybody's new cooldown, both [B, N]; players out of the game keep theirs."""
    fires = asked & alive & (wait == 0)
    cooled = torch.where(alive, (wait - 1).clamp_min(0), wait)
    return fires, torch.where(fires, cooldown, cooled)


class Beam:
    """One kind of beam.

    Args:
        met: what a beam from each place (cell * 4 + heading) passes, [n_places, 9]: numbers of what can stop it.
        n: how many such numbers there are; `n` itself, or `nothing`, is none.
        nothing: the number that stands for nothing.
        branches: look at those who fire alone, instead of at everybody; the results are the same.
    """

    def __init__(self, met: torch.Tensor, n: int, nothing: int, branches: bool) -> None:
        self._met, self._n, self._nothing = met, n, nothing
        self.branches = branches

    def fire(
        self, fires: torch.Tensor, place: torch.Tensor, blocks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What beams meet.

        Args:
            fires: who fires, [B, N] bool.
            place: where and which way, [B, N] int64.
            blocks: what stops a beam, [B, n], not 0 where something is.

        Returns:
            hits: how many things each player hit, [B, N] int64.
            passed: which of its nine cells each beam passes, [B, N, 9] bool.
            struck: for those looked at, [k, 9], place in `blocks` (flattened) of what was hit; the number of all where
                nothing was.
            what: for the same, what `blocks` says there.
        """
        games, n = fires.shape
        fired = fires.flatten()
        who = fired.nonzero()[:, 0] if self.branches else torch.arange(games * n, device=fired.device)
        met = self._met.index_select(0, place.flatten().index_select(0, who))
        there = met != self._nothing
        at = (who // n)[:, None] * self._n + torch.where(there, met, 0)
        what = blocks.flatten().index_select(0, at.flatten()).view(at.shape)
        hit, open_ = lines((what != 0) & there, fired.index_select(0, who))
        hits = torch.zeros(games * n, dtype=torch.int64, device=fired.device)
        hits.index_copy_(0, who, hit.sum(-1))
        passed = torch.zeros((games * n, 9), dtype=torch.bool, device=fired.device)
        passed.index_copy_(0, who, open_)
        struck = torch.where(hit, at, games * self._n)
        return hits.view(games, n), passed.view(games, n, 9), struck, what


def lines(met: torch.Tensor, fires: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What beams hit and which cells they pass, [k, 9] bool: of three lines of three, each ends at the first that it
    `met` [k, 9]; nothing where nobody `fires` [k]."""
    met = met.view(-1, 3, 3)
    first = fires[:, None].expand(-1, 3)
    second = first & ~met[..., 0]
    third = second & ~met[..., 1]
    reached = torch.stack([first, second, third], dim=-1)
    return (reached & met).flatten(1), (reached & ~met).flatten(1)


def marked(struck: torch.Tensor, games: int, n: int) -> torch.Tensor:
    """[games, n] bool: what was struck, by place in all of them; `games * n` is nothing."""
    return sites.flagged(struck.flatten(), games * n).view(games, n)
