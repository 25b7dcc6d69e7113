"""Scenes on small maps with known outcomes on the real engine.

The native engine receives the random numbers and must agree in each step.
"""

import numpy as np
import pytest

from engine_games import GameSettings, Recording, play, play_script
from replays import replay_recordings

pytestmark = [pytest.mark.slow, pytest.mark.meltingpot]
MOVES = ("forward", "step_right", "backward", "step_left")
STEPS = np.array([(0, -1), (1, 0), (0, 1), (-1, 0)])
"""Columns and rows of a step north, east, south, west."""
COOLDOWN, RESPAWN_DELAY = {"cleanup": 10, "harvest": 2}, {"cleanup": 50, "harvest": 4}


def add_walls(*rows):
    """Return a map of a room with these rows above a closed chamber for zapped players."""
    width = len(rows[0])
    chamber = ["".join("P" if x < 15 else " " for x in range(max(width, 15)))]
    width = len(chamber[0])
    wall = "W" * (width + 2)
    rows = [row + "W" * (width - len(row)) for row in rows]
    return "\n".join([wall, *(f"W{row}W" for row in rows), wall, f"W{chamber[0]}W", wall])


def game_settings(substrate, *rows, ground=(), **options):
    """Return the room above, with `ground` for required tiles out of reach."""
    text = add_walls(*rows)
    width = len(text.split("\n", 1)[0])
    stock = ground or ({"cleanup": "BFFF", "harvest": "A"}[substrate],)
    text = "\n".join([text, *(f"W{row.ljust(width - 2, 'W')}W" for row in stock), "W" * width])
    n_agents = sum(char.isdigit() or char in "abcde" for row in rows for char in row)
    return GameSettings(substrate, text, n_agents, **options)


def assert_deterministic(recording: Recording):
    """Return the recording after a comparison with the native engine."""
    replay_result = replay_recordings([recording])
    assert replay_result.steps == len(recording.action) and not replay_result.mismatches, replay_result.mismatches[:5]
    return recording.states


def places(recording, player):
    return list(zip(recording.x[:, player].tolist(), recording.y[:, player].tolist(), strict=True))


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_moves_follow_heading(substrate):
    """Move in a room of three by three cells.

    Go from the middle to each side in each heading and back, then into the wall and along it.
    """
    room = game_settings(substrate, "   ", " 0 ", "   ", headings="N")
    lines = []
    for _ in range(4):
        for move in range(4):
            lines += [MOVES[move], MOVES[move], MOVES[(move + 2) % 4]]
        lines += ["forward", "step_left", "forward", "step_left", "backward", "step_right", "turn_right"]
    lines += ["turn_left"] * 5
    recording = assert_deterministic(play_script(room, [[line] for line in lines]))
    at, heading, blocked = np.array([2, 2]), 0, 0
    for t, line in enumerate(lines, start=1):
        if line in MOVES:
            target = at + STEPS[(heading + MOVES.index(line)) % 4]
            in_range = (target >= 1).all() and (target <= 3).all()
            at, blocked = (target, blocked) if in_range else (at, blocked + 1)
        heading = (heading + {"turn_right": 1, "turn_left": 3}.get(line, 0)) % 4
        assert (recording.x[t, 0], recording.y[t, 0], recording.heading[t, 0]) == (*at, heading)
    assert blocked > 20


def contests(substrate, row, try_, check_attempt, attempts):
    """Place players in a row with the moves `try_`.

    If `check_attempt(recording)` returns moves, the players take these instead.
    """
    room = game_settings(substrate, row, headings={2: "EE", 3: "EEE"}[sum(char.isdigit() for char in row)])

    def policy(recording, rng):
        moves = check_attempt(recording)
        return np.array([room.actions.index(name) for name in (try_ if moves is None else moves)])

    return assert_deterministic(play(room, policy, attempts, 0))


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_first_player_wins_contested_cell(substrate):
    """Let both players enter the cell between them; the winner steps back, repeatedly."""

    def check_attempt(recording):
        has_moved = recording.x != np.array([1, 3])
        return np.where(has_moved, ("backward", "forward"), "noop") if has_moved.any() else None

    recording = contests(substrate, "0 1", ("forward", "backward"), check_attempt, 40)
    attempts_made = np.flatnonzero((recording.x[1:] == 2).any(1))
    winner, first = (recording.x[1:][attempts_made] == 2).argmax(1), recording.turn[1:][attempts_made].argmin(1)
    np.testing.assert_array_equal(winner, first)
    assert len(attempts_made) == 20 and 0 < winner.sum() < 20


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_vacated_cell_is_free(substrate):
    """Let one player follow another, which is possible if the other moves first."""

    def check_attempt(recording):
        if recording.x[1] - recording.x[0] > 1:
            return "forward", "noop"
        return ("backward", "backward") if recording.x[1] == 15 else None

    recording = contests(substrate, "01" + " " * 13, ("forward", "forward"), check_attempt, 40)
    aligned = np.flatnonzero(
        (recording.x[:-1, 1] - recording.x[:-1, 0] == 1) & (recording.x[1:, 1] > recording.x[:-1, 1])
    )
    follows = recording.x[aligned + 1, 0] > recording.x[aligned, 0]
    np.testing.assert_array_equal(follows, recording.turn[aligned + 1, 1] < recording.turn[aligned + 1, 0])
    assert 0 < follows.sum() < len(aligned) and len(aligned) > 15


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_players_cannot_swap_or_rotate(substrate):
    """Check that two players facing each other, and four players in a circle, do not move in any order."""
    swap = assert_deterministic(
        play_script(game_settings(substrate, "01", headings="EW"), [["forward", "forward"]] * 8)
    )
    circle = assert_deterministic(
        play_script(game_settings(substrate, "01", "32", headings="ESWN"), [["forward"] * 4] * 12)
    )
    for recording in (swap, circle):
        assert (recording.x == recording.x[0]).all() and (recording.y == recording.y[0]).all()
    assert len({tuple(turn) for turn in circle.turn[1:].tolist()}) > 5


def test_player_chain_moves_in_order():
    def check_attempt(recording):
        has_jumped = (np.diff(recording.x) > 1).any() or recording.x[2] == 15
        return np.where(recording.x > [1, 2, 3], "backward", "noop") if has_jumped else None

    recording = contests("harvest", "012" + " " * 12, ("forward",) * 3, check_attempt, 60)
    gaps = {tuple(np.diff(x)) for x in recording.x.tolist()}
    assert {(1, 1), (2, 1), (1, 2)} <= gaps


def ring(depth):
    """Return the cells that a beam reaches at `depth`, for any heading, as offsets from the shooter."""
    return sorted({tuple(cell) for heading in range(4) for cell in cells_in_beam(heading, depth)})


def cells_in_beam(heading, depth):
    forward, right = STEPS[heading], STEPS[(heading + 1) % 4]
    return [forward * depth, -right + forward * (depth - 1), right + forward * (depth - 1)]


@pytest.mark.parametrize("heading", range(4))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_zap_covers_three_by_three_cells(depth, heading):
    """Place players on all cells at a depth: those in the shooter's heading are hit."""
    cells = ring(depth)
    rows = [[" "] * 9 for _ in range(9)]
    rows[4][4] = "0"
    for player, (x, y) in enumerate(cells, start=1):
        rows[4 + y][4 + x] = "0123456789abcde"[player]
    room = game_settings("harvest", *("".join(row) for row in rows), headings="NESW"[heading] + "N" * len(cells))
    recording = assert_deterministic(play_script(room, [["zap"] + ["noop"] * len(cells)]))
    hit = {cells[player - 1] for player in np.flatnonzero(~recording.alive[1])}
    assert hit == {tuple(cell) for cell in cells_in_beam(heading, depth)} and recording.zapped[1, 0] == 3


ZAPS = {
    "nobody in reach": (("    2", "     ", "1 0  ", "     ", "  3  "), "N", set()),
    "four ahead": (("0   1",), "E", set()),
    "three ahead": (("0  1",), "E", {1}),
    "the one behind is shielded": (("0 12",), "E", {1}),
    "shielded in a side line only": (("12 ", "0  "), "E", {1}),
    "a wall ahead": (("0W1",), "E", set()),
    "a wall beside does not stop the middle": (("W2 ", "0 1", "3  "), "E", {1, 3}),
    "beside": (("1", "0", "2"), "E", {1, 2}),
    "beside, looking away along the line": (("1", "0", "2"), "S", {2}),
    "behind": (("1", "0"), "S", set()),
}


@pytest.mark.parametrize(
    ("substrate", "name"),
    [("cleanup", "nobody in reach"), ("cleanup", "the one behind is shielded"), *(("harvest", name) for name in ZAPS)],
)
def test_zap_collisions(substrate, name):
    rows, heading, hit = ZAPS[name]
    width, n_agents = max(map(len, rows)), sum(char.isdigit() for row in rows for char in row)
    room = game_settings(substrate, *(row.ljust(width) for row in rows), headings=heading + "N" * (n_agents - 1))
    recording = assert_deterministic(play_script(room, [["zap"] + ["noop"] * (n_agents - 1)]))
    assert set(np.flatnonzero(~recording.alive[1]).tolist()) == hit and recording.zapped[1, 0] == len(hit)


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_mutual_zap_removes_players(substrate):
    recording = assert_deterministic(play_script(game_settings(substrate, "0 1", headings="EW"), [["zap", "zap"]]))
    assert not recording.alive[1].any() and (recording.zapped[1] == 1).all()


def test_zap_follows_moves():
    """Move players nearer, out of and into the line of fire while the shooter fires."""
    room = game_settings("harvest", "0  1 2", headings="EEW")
    assert assert_deterministic(play_script(room, [["zap", "backward", "noop"]])).alive[1].tolist() == [
        True,
        False,
        True,
    ]
    assert assert_deterministic(play_script(room, [["zap", "forward", "noop"]])).alive[1].tolist() == [True, True, True]
    room = game_settings("harvest", "0   1", headings="EW")
    assert assert_deterministic(play_script(room, [["zap", "forward"]])).alive[1].tolist() == [True, False]


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_zap_has_cooldown(substrate):
    """Check that a request in each step fires every eleventh, or third, step.

    The cooldown stops while a player is removed.
    """
    wait = COOLDOWN[substrate]
    recording = assert_deterministic(play_script(game_settings(substrate, "0", headings="N"), [["zap"]] * 40))
    fired = np.flatnonzero(recording.zap_wait[1:, 0] == wait) + 1
    np.testing.assert_array_equal(fired, np.arange(1, 41, wait + 1))
    np.testing.assert_allclose(recording.ready[: wait + 2, 0], [1, *np.linspace(0, 1, wait + 1)])
    lines = [["zap", "zap"]] + [["noop", "noop"]] * (RESPAWN_DELAY[substrate] + wait + 4)
    out = assert_deterministic(play_script(game_settings(substrate, "0 1", headings="EW"), lines))
    absent = ~out.alive[:, 0]
    assert (out.zap_wait[absent, 0] == wait).all() and (out.ready[absent, 0] == 0).all()
    respawn_step = np.flatnonzero(absent).max() + 1
    np.testing.assert_array_equal(out.zap_wait[respawn_step : respawn_step + wait + 2, 0], [*range(wait, -1, -1), 0])


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_zapped_player_respawns_on_spawn_cell(substrate):
    """Check removal for 51 or 5 observations; actions have an effect from the frame after the respawn."""
    delay = RESPAWN_DELAY[substrate]
    lines = [["zap", "noop"]] + [["noop", "turn_right"]] * (delay + 4)
    recording = assert_deterministic(play_script(game_settings(substrate, "0 1", headings="EW"), lines))
    absent_steps = np.flatnonzero(~recording.alive[:, 1])
    assert len(absent_steps) == delay + 1 and absent_steps[0] == 1
    respawn_step = absent_steps[-1] + 1
    np.testing.assert_array_equal(
        recording.heading[respawn_step : respawn_step + 3, 1], (recording.heading[respawn_step, 1] + np.arange(3)) % 4
    )
    assert recording.y[respawn_step, 1] == 3 and 1 <= recording.x[respawn_step, 1] <= 15


@pytest.mark.slow
def test_occupied_spawn_delays_respawn():
    """Use legislative rules, where each player has its own spawn cell. The zapper occupies it until step 60."""
    game_settings = GameSettings("cleanup", n_agents=2, rules="legislative")
    walk = ["turn_left", "forward", "zap", "forward", "forward", "step_left"]
    lines = [[step, "noop"] for step in walk] + [["noop", "noop"]] * (59 - len(walk)) + [["step_right", "noop"]] * 2
    recording = assert_deterministic(play_script(game_settings, lines))
    assert places(recording, 0)[59] == (8, 10) == places(recording, 1)[0]
    absent_steps = np.flatnonzero(~recording.alive[:, 1])
    np.testing.assert_array_equal(absent_steps, np.arange(3, 60))
    assert places(recording, 1)[60] == (8, 10)


RIVER = ("FFFFFFF", "FFFFFFF", "FFFFFFF", "FFF0FFF", "FFFFFFF", "FFFFFFF", "FFFFFFF")


@pytest.mark.parametrize("heading", range(4))
def test_clean_beam_stops_at_first_dirt(heading):
    """Shoot every third step at dirt.

    The three shots clean the first, second and third cells of the three lines; a fourth cleans nothing.
    """
    recording = assert_deterministic(
        play_script(game_settings("cleanup", *RIVER, headings="NESW"[heading]), [["clean"]] * 13)
    )
    spots = [(x, y) for y in range(7) for x in range(7) if (x, y) != (3, 3)]
    for depth in (1, 2, 3):
        t = 3 * depth - 2
        changed = [i for i in np.flatnonzero(recording.dirt[t - 1] & ~recording.dirt[t]) if i < len(spots)]
        assert {spots[i] for i in changed} == {tuple(cell + 3) for cell in cells_in_beam(heading, depth)}
        assert recording.cleaned[t, 0] == 3 and recording.clean_wait[t, 0] == 2
    assert recording.cleaned.sum() == 9 and (recording.clean_wait[[10, 11, 12, 13], 0] == [2, 1, 0, 2]).all()


def test_clean_beam_passes_players():
    recording = assert_deterministic(
        play_script(game_settings("cleanup", "01F", "WWW", "F F", headings="EN"), [["clean", "noop"]])
    )
    assert recording.cleaned[1].tolist() == [1, 0] and not recording.dirt[1, 0]
    recording = assert_deterministic(
        play_script(game_settings("cleanup", "0WF", "   ", "F F", headings="E"), [["clean"]])
    )
    assert recording.cleaned[1, 0] == 0


def test_joint_cleaning_is_observed_next_step():
    """Let two players shoot at one cell in the same step; both count it. Others observe it in the next step."""
    room = game_settings("cleanup", "0F1", "  2", headings="EWN")
    recording = assert_deterministic(play_script(room, [["clean", "clean", "noop"]] + [["noop"] * 3] * 2))
    assert recording.cleaned[1].tolist() == [1, 1, 0]
    assert recording.others_cleaned[:4].tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 2], [0, 0, 0]]


def test_eating_requires_move():
    """Wait, turn and zap next to an apple, which remains; a move onto it eats it once."""
    room = game_settings("harvest", "0A", headings="N")
    quiet = ["noop", "turn_right", "zap", "noop", "turn_left", "forward"]
    recording = assert_deterministic(play_script(room, [[line] for line in (*quiet, "step_right", "step_right")]))
    assert recording.reward[:, 0].tolist() == [0] * 7 + [1, 0]
    assert recording.apple[:, 0].tolist() == [True] * 7 + [False] * 2


def test_apple_under_player_is_eaten_immediately():
    """Place players on apple sites next to a clean river.

    Some wait, some turn, some walk into a wall, which counts as a move into their own cell. No player observes an apple
    there.
    """
    room = game_settings("cleanup", "0W1W2W3W4W5W6W7W8", ground=["H" * 15] * 4, headings="N" * 9, under="B")
    lines = [["noop"] * 3 + ["turn_left"] * 3 + ["forward"] * 3] * 90
    recording = assert_deterministic(play_script(room, lines))
    assert not recording.apple.any() and recording.grew.sum() > 9
    assert set(recording.reward[:, :6].flat) == {0, 1} and set(recording.reward[:, 6:].flat) == {0, 2}


def test_eating_while_zapped():
    recording = assert_deterministic(
        play_script(game_settings("harvest", "0  A1", headings="EW"), [["zap", "forward"], ["noop", "noop"]])
    )
    assert recording.reward[1].tolist() == [0, 1] and recording.alive[1].tolist() == [True, False]


def test_neighbor_count_lags():
    """Eat a single apple, whose grass withers two steps later.

    In a row of three, regrowth depends on the remaining neighbors.
    """
    room = game_settings("harvest", "0AAA  A1", headings="EW")
    forth, backward, go = ["forward", "forward"], ["noop", "backward"], ["forward", "noop"]
    lines = [forth, backward, go, go] + [["noop", "noop"]] * 3
    recording = assert_deterministic(play_script(room, lines))
    assert recording.waits[:4, 3].tolist() == [-1, -1, 0, 0] and recording.dry[:4, 3].tolist() == [
        False,
        False,
        True,
        True,
    ]
    assert recording.waits[:, 0].tolist()[:3] == [-1, -1, 2]
    if not recording.grew.any():
        assert recording.waits[:, 0].tolist() == [-1, -1, 2, 2, 1, 0, 0, 0]
