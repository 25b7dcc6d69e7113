"""Frequencies of random events in native games match the rules and the real engine.

All seeds are fixed: these tests give the same result always. `reference_statistics.json` says where the engine's
numbers are from; the frequencies in it count single draws.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats

from llmrl.envs.native.engine import GameSetup
from llmrl.envs.native.hashed_random import derive_game_keys
from llmrl.envs.native.vec_env import find_ended_games
from llmrl.envs.substrate import install
from llmrl.envs.substrate.maps import GameMap, parse_map
from statistics_of_games import compute_z_scores, load_reference, measure_native_games, parse_condition
from stepped_engine import HashedRandom, SteppedEngine

pytestmark = pytest.mark.meltingpot
LIKELY = 1e-3
"""Smallest p-value of a fair test; there are about twenty."""
N_GAMES = 20_000


def melting_pot(substrate: str, clean: bool = False) -> GameMap:
    text = install.import_substrate({"cleanup": "clean_up", "harvest": "commons_harvest__open"}[substrate])[1].ASCII_MAP
    return parse_map(substrate, text.replace("F", "H") if clean else text)


def keys(games, seed=0):
    return torch.from_numpy(derive_game_keys(np.full(games, seed), np.arange(games), np.zeros(games, np.int64)))


def started(substrate, games=N_GAMES, n_agents=7, clean=False, text=None):
    """Return an engine, new games, and their random numbers."""
    engine = SteppedEngine(GameSetup(parse_map(substrate, text) if text else melting_pot(substrate, clean), n_agents))
    draws = HashedRandom(keys(games))
    return engine, engine.start(draws), draws


def even(counts):
    """Return whether all of these counts are equally probable."""
    return stats.chisquare(counts).pvalue > LIKELY


def agree(*samples):
    """Return whether samples (trials, successes) have the same probability."""
    table = [(successes, trials - successes) for trials, successes in samples]
    return stats.chi2_contingency(table).pvalue > LIKELY


def binomial(trials, successes, p):
    return stats.binomtest(int(successes), int(trials), p).pvalue > LIKELY


ROOM = "\n".join(["WWWWW", "WPPPW", "WPPPW", "WPPPW", "WAWWW", "WWWWW"])


@pytest.mark.parametrize("players", [2, 3])
def test_move_order_is_fair(players):
    """Place players around a free cell that all of them want."""
    engine, state, draws = started("harvest", n_agents=players, text=ROOM)
    places = [(1, 2), (3, 2), (2, 1)][:players]
    cells = torch.tensor([engine.setup.game_map.find_cell(x, y) for x, y in places]).expand(N_GAMES, -1)
    state = dataclasses.replace(state, pos=cells, heading=torch.tensor([1, 3, 2][:players]).expand(N_GAMES, -1))
    after, _ = engine.step(state, torch.ones((N_GAMES, players), dtype=torch.int64), draws)
    middle = after.pos == engine.setup.game_map.find_cell(2, 2)
    assert (middle.sum(1) == 1).all() and even(middle.sum(0))
    if players == 2:
        wins = load_reference()["frequencies"]["two players enter one free cell: tries, won by the lower slot"]
        assert agree(wins, (N_GAMES, int(middle[:, 0].sum())))


def test_move_orders_are_uniform():
    """Move a line of three players; the distances reveal the order."""
    engine, state, draws = started("harvest", n_agents=3, text="\n".join(["WWWWWW", "WPPPAW", "WWWWWW"]))
    cells = torch.tensor([engine.setup.game_map.find_cell(x, 1) for x in (1, 2, 3)]).expand(N_GAMES, -1)
    state = dataclasses.replace(state, pos=cells, heading=torch.ones_like(state.heading))
    after, _ = engine.step(state, torch.ones((N_GAMES, 3), dtype=torch.int64), draws)
    has_moved = after.pos > cells
    assert has_moved[:, 2].all()
    second, third = has_moved[:, 1], has_moved[:, 0]
    assert (
        binomial(N_GAMES, second.sum(), 1 / 2) and binomial(N_GAMES, third.sum(), 1 / 6) and not (third & ~second).any()
    )
    followed = load_reference()["frequencies"]["a player enters the cell that another leaves: tries, succeeded"]
    assert agree(followed, (N_GAMES, int(second.sum())))


@pytest.mark.slow
@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_players_begin_anywhere_facing_anywhere(substrate):
    engine, state, _ = started(substrate)
    game_map = engine.setup.game_map
    assert all(len(set(places)) == 7 for places in state.pos[:500].tolist())
    for player in range(7):
        assert even(np.bincount(state.heading[:, player], minlength=4))
        cells = game_map.inner_spawn_cells if substrate == "harvest" and player < 2 else game_map.spawn_cells
        counts = np.bincount(state.pos[:, player], minlength=game_map.n_cells)
        assert even(counts[cells]) and counts[cells].sum() == N_GAMES
    if engine.n_river_cells:
        assert even(np.bincount(state.phase.flatten().numpy(), minlength=4))


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_respawn_cell_and_heading_are_uniform(substrate):
    """Respawn two players in one step; the others stand on spawn cells."""
    engine, state, draws = started(substrate)
    spawn = torch.from_numpy(engine.setup.game_map.spawn_cells)
    pos = torch.cat([torch.zeros(2, dtype=torch.int64), spawn[:5]]).expand(N_GAMES, -1)
    out = torch.tensor([True, True] + [False] * 5).expand(N_GAMES, -1)
    state = dataclasses.replace(state, pos=pos, alive=~out, steps_until_return=out.to(torch.int32))
    after, _ = engine.step(state, torch.zeros((N_GAMES, 7), dtype=torch.int64), draws)
    assert after.alive.all() and (after.pos[:, 0] != after.pos[:, 1]).all()
    for player in (0, 1):
        counts = torch.bincount(after.pos[:, player], minlength=engine.n_cells)[spawn]
        assert not counts[:5].any() and even(counts[5:]) and counts.sum() == N_GAMES
        assert even(torch.bincount(after.heading[:, player]))
    for observed_counts in load_reference()["frequencies"]["headings of players who came back, N E S W"].values():
        assert even(observed_counts)


@pytest.mark.long
@pytest.mark.slow
def test_dirt_appears_from_step_51():
    engine, state, draws = started("cleanup", 4000)
    noop, clean = torch.zeros((4000, 7), dtype=torch.int64), ~state.dirt[0]
    for _ in range(50):
        state, _ = engine.step(state, noop, draws)
    assert (state.dirt.sum(1) == 79).all()
    state, _ = engine.step(state, noop, draws)
    n_new_dirt = state.dirt.sum(1) - 79
    assert binomial(4000, n_new_dirt.sum(), 0.5) and even(state.dirt.sum(0)[clean])
    for _ in range(19):
        state, _ = engine.step(state, noop, draws)
    n_new_dirt = int((state.dirt.sum(1) - 79).sum())
    assert binomial(80_000, n_new_dirt, 0.5)
    for _ in range(180):
        state, _ = engine.step(state, noop, draws)
    assert state.dirt.all(1).any(), "with all of the river dirty, nothing more can get dirty"


def test_apple_growth_depends_on_dirt():
    """Compare each share of dirt with the rule and with the engine, without moves."""
    games = 8 * 148
    engine, state, draws = started("cleanup", games)
    dirt = torch.arange(147)[None] < torch.arange(games)[:, None] % 148
    pos = torch.from_numpy(engine.setup.game_map.spawn_cells[:7]).expand(games, -1)
    state = dataclasses.replace(state, dirt=dirt, pos=pos)
    after, _ = engine.step(state, torch.zeros((games, 7), dtype=torch.int64), draws)
    grown, amount = after.apple.sum(1).numpy(), dirt.sum(1).numpy()
    assert not grown[amount > 58].any()
    chance = np.maximum(0.05 - 0.125 * amount / 147, 0)
    for low in range(0, 60, 12):
        band = (amount >= low) & (amount < low + 12)
        expected, variance = 122 * chance[band].sum(), (122 * chance * (1 - chance))[band].sum()
        assert abs(grown[band].sum() - expected) < 3.5 * np.sqrt(variance)
    observed_counts = load_reference()["frequencies"][
        "apples that grew by dirty cells: from (to 5 more), trials, grown"
    ]
    for low, trials, observed_count in observed_counts:
        band = (amount >= low) & (amount < low + 6)
        if not observed_count and low > 58:
            assert not grown[band].any()
        else:
            assert agree((trials, observed_count), (122 * band.sum(), grown[band].sum())), low


def test_apple_regrowth_depends_on_neighbors():
    """Compare sites with 0, 1, 2, and 3 or more live neighbors with the rule and with the engine."""
    engine, state, draws = started("harvest", 40_000)
    groups = torch.arange(4, dtype=torch.int8).repeat(10_000)[:, None].expand(-1, 64)
    pos = torch.from_numpy(engine.setup.game_map.spawn_cells[:7]).expand(40_000, -1)
    state = dataclasses.replace(state, apple=torch.zeros_like(state.apple), group=groups, pos=pos)
    after, _ = engine.step(state, torch.zeros((40_000, 7), dtype=torch.int64), draws)
    observed_counts = load_reference()["frequencies"][
        "apples that came back by live neighbors (3: or more): trials, came back"
    ]
    for n_neighbors, rate in enumerate((0, 0.0025, 0.005, 0.025)):
        n_regrown = int(after.apple[n_neighbors::4].sum())
        assert binomial(640_000, n_regrown, rate) if rate else n_regrown == 0
        assert (
            agree(observed_counts[n_neighbors], (640_000, n_regrown)) if rate else observed_counts[n_neighbors][1] == 0
        )


@pytest.mark.parametrize(("substrate", "p"), [("cleanup", 0.2), ("harvest", 0.15)])
def test_episodes_end_at_1099_then_per_hundred(substrate, p):
    setup = GameSetup(melting_pot(substrate), 7)
    random_keys = keys(N_GAMES).numpy()
    going, n_remaining = np.ones(N_GAMES, bool), N_GAMES
    lengths = []
    for t in range(1, 5001):
        if t not in (1098, 1099, 1100, 4999, 5000) and (t % 100 not in (0, 99)):
            continue
        ends = going & find_ended_games(np.full(N_GAMES, t), None, random_keys, setup)
        lengths += [t] * int(ends.sum())
        if ends.any() and t < 4999 and n_remaining > 500:
            assert binomial(n_remaining, ends.sum(), p), t
        going &= ~ends
        n_remaining = int(going.sum())
    assert n_remaining == 0 and set(lengths) <= {*range(1099, 5000, 100), 5000} and 1099 in lengths
    for observed_count in load_reference()["frequencies"]["lengths of episodes"][substrate]:
        values, counts = np.array([(int(t), n) for t, n in observed_count.items()]).T
        assert stats.ks_2samp(np.repeat(values, counts), lengths).pvalue > LIKELY


@pytest.mark.slow
@pytest.mark.parametrize("name", ["harvest, uniform", "cleanup, mixed"])
def test_games_match_engine_statistics(name):
    entry = load_reference()["conditions"][name]
    z = compute_z_scores(entry["quantities"], measure_native_games(parse_condition(entry), 128, seed=1))
    assert max(map(abs, z.values())) < 4, sorted(z.items(), key=lambda pair: -abs(pair[1]))[:5]


@pytest.mark.long
def test_all_conditions_match_engine_statistics():
    """Compare means of all counts: no |z| above 4, and at most 5 % above 2."""
    scores: dict[str, float] = {}
    for name, entry in load_reference()["conditions"].items():
        z = compute_z_scores(entry["quantities"], measure_native_games(parse_condition(entry), 512, seed=0))
        scores |= {f"{name}: {quantity}": value for quantity, value in z.items()}
    worst = sorted(scores.items(), key=lambda pair: -abs(pair[1]))[:10]
    assert len(scores) > 350 and abs(worst[0][1]) < 4, worst
    assert np.mean([abs(value) > 2 for value in scores.values()]) <= 0.05, worst


@pytest.mark.long
@pytest.mark.slow
def test_comparison_detects_different_rates():
    """Detect Harvest with half the regrowth rate."""
    entry = load_reference()["conditions"]["harvest, uniform"]
    condition = parse_condition(entry)

    class Slower(HashedRandom):
        def uniform(self, purpose: str, t: torch.Tensor, n: int) -> torch.Tensor:
            u = super().uniform(purpose, t, n)
            return u * 2 if purpose == "grow" else u

    numbers = measure_native_games(condition, 64, seed=1, draws=Slower)
    assert max(map(abs, compute_z_scores(entry["quantities"], numbers).values())) > 4
