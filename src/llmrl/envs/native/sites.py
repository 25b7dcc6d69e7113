"""Reading and marking sites of many games by number, where the number of sites stands for none."""

from __future__ import annotations

import torch


def at(sites: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """What `sites` [B, n] bool says at `places` [B, k]; false at place n, which is none."""
    n = sites.shape[1]
    return sites.gather(1, places.clamp_max(n - 1)) & (places < n)


def marked(which: torch.Tensor, places: torch.Tensor, n: int) -> torch.Tensor:
    """[B, n] bool: true at those `places` [B, k] for which `which` [B, k] is true; place n is none."""
    games = len(places)
    first = torch.arange(games, device=places.device)[:, None] * n
    return flagged(torch.where(which & (places < n), first + places, games * n).flatten(), games * n).view(games, n)


def flagged(places: torch.Tensor, n: int) -> torch.Tensor:
    """[n] bool: true at `places`; place n is none."""
    # One place more than there are takes what is not to be marked, so that no shape depends on what happens.
    return torch.zeros(n + 1, dtype=torch.bool, device=places.device).index_fill_(0, places, True)[:n]
