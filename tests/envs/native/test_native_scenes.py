"""Scenes on small maps, played on the real engine: what happens there is said here, and the native engine, told only
what was drawn at random, has to do the same at every step."""

import numpy as np
import pytest

from engine_games import Recording, Rig, play, script
from replays import replay

pytestmark = [pytest.mark.slow, pytest.mark.meltingpot]
MOVES = ("forward", "step_right", "backward", "step_left")
STEPS = np.array([(0, -1), (1, 0), (0, 1), (-1, 0)])
"""Columns and rows of a step north, east, south, west."""
COOLDOWN, AWAY = {"cleanup": 10, "harvest": 2}, {"cleanup": 50, "harvest": 4}


def walled(*rows):
    """A map of a room of these rows above a closed chamber, where zapped players come back."""
    width = len(rows[0])
    chamber = ["".join("P" if x < 15 else " " for x in range(max(width, 15)))]
    width = len(chamber[0])
    wall = "W" * (width + 2)
    rows = [row + "W" * (width - len(row)) for row in rows]
    return "\n".join([wall, *(f"W{row}W" for row in rows), wall, f"W{chamber[0]}W", wall])


def rig(substrate, *rows, below=(), **options):
    """The room above; `below`, beyond reach, what a map cannot do without."""
    text = walled(*rows)
    width = len(text.split("\n", 1)[0])
    stock = below or ({"cleanup": "BFFF", "harvest": "A"}[substrate],)
    text = "\n".join([text, *(f"W{row.ljust(width - 2, 'W')}W" for row in stock), "W" * width])
    n_agents = sum(char.isdigit() or char in "abcde" for row in rows for char in row)
    return Rig(substrate, text, n_agents, **options)


def same(recording: Recording):
    """What was seen, after making sure that the native engine does the same."""
    verdict = replay([recording])
    assert verdict.steps == len(recording.action) and not verdict.mismatches, verdict.mismatches[:5]
    return recording.seen


def places(seen, player):
    return list(zip(seen.x[:, player].tolist(), seen.y[:, player].tolist(), strict=True))


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_moves_are_relative_to_the_heading_and_walls_stop_them(substrate):
    """In a room of three by three: from the middle to each side in each heading and back, then on into the wall and
    along it, turning all the way."""
    room = rig(substrate, "   ", " 0 ", "   ", headings="N")
    lines = []
    for _ in range(4):
        for move in range(4):
            lines += [MOVES[move], MOVES[move], MOVES[(move + 2) % 4]]
        lines += ["forward", "step_left", "forward", "step_left", "backward", "step_right", "turn_right"]
    lines += ["turn_left"] * 5
    seen = same(script(room, [[line] for line in lines]))
    at, heading, blocked = np.array([2, 2]), 0, 0
    for t, line in enumerate(lines, start=1):
        if line in MOVES:
            target = at + STEPS[(heading + MOVES.index(line)) % 4]
            inside = (target >= 1).all() and (target <= 3).all()
            at, blocked = (target, blocked) if inside else (at, blocked + 1)
        heading = (heading + {"turn_right": 1, "turn_left": 3}.get(line, 0)) % 4
        assert (seen.x[t, 0], seen.y[t, 0], seen.heading[t, 0]) == (*at, heading)
    assert blocked > 20


def contests(substrate, row, try_, again, attempts):
    """Players stand in a row and `try_`; whenever `again(seen)` says so they do what it says instead."""
    room = rig(substrate, row, headings={2: "EE", 3: "EEE"}[sum(char.isdigit() for char in row)])

    def policy(seen, rng):
        instead = again(seen)
        return np.array([room.actions.index(name) for name in (try_ if instead is None else instead)])

    return same(play(room, policy, attempts, 0))


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_of_two_players_for_one_cell_the_first_gets_it(substrate):
    """Both step into the cell between them; who got it steps back, and so on."""

    def again(seen):
        moved = seen.x != np.array([1, 3])
        return np.where(moved, ("backward", "forward"), "noop") if moved.any() else None

    seen = contests(substrate, "0 1", ("forward", "backward"), again, 40)
    tried = np.flatnonzero((seen.x[1:] == 2).any(1))
    winner, first = (seen.x[1:][tried] == 2).argmax(1), seen.turn[1:][tried].argmin(1)
    np.testing.assert_array_equal(winner, first)
    assert len(tried) == 20 and 0 < winner.sum() < 20


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_a_cell_is_free_once_its_player_has_left(substrate):
    """One player follows another: it can if the other moves first."""

    def again(seen):
        if seen.x[1] - seen.x[0] > 1:
            return "forward", "noop"
        return ("backward", "backward") if seen.x[1] == 15 else None

    seen = contests(substrate, "01" + " " * 13, ("forward", "forward"), again, 40)
    together = np.flatnonzero((seen.x[:-1, 1] - seen.x[:-1, 0] == 1) & (seen.x[1:, 1] > seen.x[:-1, 1]))
    follows = seen.x[together + 1, 0] > seen.x[together, 0]
    np.testing.assert_array_equal(follows, seen.turn[together + 1, 1] < seen.turn[together + 1, 0])
    assert 0 < follows.sum() < len(together) and len(together) > 15


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_players_do_not_swap_and_do_not_turn_in_a_circle(substrate):
    """Two face each other; four each want the cell of the next. Nobody moves, whatever the order."""
    swap = same(script(rig(substrate, "01", headings="EW"), [["forward", "forward"]] * 8))
    circle = same(script(rig(substrate, "01", "32", headings="ESWN"), [["forward"] * 4] * 12))
    for seen in (swap, circle):
        assert (seen.x == seen.x[0]).all() and (seen.y == seen.y[0]).all()
    assert len({tuple(turn) for turn in circle.turn[1:].tolist()}) > 5


def test_a_line_of_players_moves_as_far_as_the_order_lets_it():
    def again(seen):
        apart = (np.diff(seen.x) > 1).any() or seen.x[2] == 15
        return np.where(seen.x > [1, 2, 3], "backward", "noop") if apart else None

    seen = contests("harvest", "012" + " " * 12, ("forward",) * 3, again, 60)
    gaps = {tuple(np.diff(x)) for x in seen.x.tolist()}
    assert {(1, 1), (2, 1), (1, 2)} <= gaps


def ring(depth):
    """Cells that a beam of some heading reaches as the `depth`-th of a line, as offsets from the shooter."""
    return sorted({tuple(cell) for heading in range(4) for cell in reached(heading, depth)})


def reached(heading, depth):
    ahead, right = STEPS[heading], STEPS[(heading + 1) % 4]
    return [ahead * depth, -right + ahead * (depth - 1), right + ahead * (depth - 1)]


@pytest.mark.parametrize("heading", range(4))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_zap_hits_three_lines_of_three_cells(depth, heading):
    """Players stand on all cells that some heading reaches at a depth: those of the shooter's heading are hit."""
    cells = ring(depth)
    rows = [[" "] * 9 for _ in range(9)]
    rows[4][4] = "0"
    for player, (x, y) in enumerate(cells, start=1):
        rows[4 + y][4 + x] = "0123456789abcde"[player]
    room = rig("harvest", *("".join(row) for row in rows), headings="NESW"[heading] + "N" * len(cells))
    seen = same(script(room, [["zap"] + ["noop"] * len(cells)]))
    hit = {cells[player - 1] for player in np.flatnonzero(~seen.alive[1])}
    assert hit == {tuple(cell) for cell in reached(heading, depth)} and seen.zapped[1, 0] == 3


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
def test_what_a_zap_meets(substrate, name):
    rows, heading, hit = ZAPS[name]
    width, n_agents = max(map(len, rows)), sum(char.isdigit() for row in rows for char in row)
    room = rig(substrate, *(row.ljust(width) for row in rows), headings=heading + "N" * (n_agents - 1))
    seen = same(script(room, [["zap"] + ["noop"] * (n_agents - 1)]))
    assert set(np.flatnonzero(~seen.alive[1]).tolist()) == hit and seen.zapped[1, 0] == len(hit)


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_two_who_zap_each_other_are_both_out(substrate):
    seen = same(script(rig(substrate, "0 1", headings="EW"), [["zap", "zap"]]))
    assert not seen.alive[1].any() and (seen.zapped[1] == 1).all()


def test_a_zap_meets_players_where_they_are_after_their_moves():
    """One steps nearer, one out of the line of fire, one into it, while the shooter fires."""
    room = rig("harvest", "0  1 2", headings="EEW")
    assert same(script(room, [["zap", "backward", "noop"]])).alive[1].tolist() == [True, False, True]
    assert same(script(room, [["zap", "forward", "noop"]])).alive[1].tolist() == [True, True, True]
    room = rig("harvest", "0   1", headings="EW")
    assert same(script(room, [["zap", "forward"]])).alive[1].tolist() == [True, False]


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_a_player_can_zap_again_after_the_cooldown(substrate):
    """Asking at every step fires every eleventh, or third; readiness climbs in between. The count does not go on for a
    player who is out."""
    wait = COOLDOWN[substrate]
    seen = same(script(rig(substrate, "0", headings="N"), [["zap"]] * 40))
    fired = np.flatnonzero(seen.zap_wait[1:, 0] == wait) + 1
    np.testing.assert_array_equal(fired, np.arange(1, 41, wait + 1))
    np.testing.assert_allclose(seen.ready[: wait + 2, 0], [1, *np.linspace(0, 1, wait + 1)])
    lines = [["zap", "zap"]] + [["noop", "noop"]] * (AWAY[substrate] + wait + 4)
    out = same(script(rig(substrate, "0 1", headings="EW"), lines))
    away = ~out.alive[:, 0]
    assert (out.zap_wait[away, 0] == wait).all() and (out.ready[away, 0] == 0).all()
    back = np.flatnonzero(away).max() + 1
    np.testing.assert_array_equal(out.zap_wait[back : back + wait + 2, 0], [*range(wait, -1, -1), 0])


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_a_zapped_player_is_out_and_comes_back_on_a_spawn_cell(substrate):
    """Out for 51 or 5 observations; what it wants in the frame of its return has no effect, in the next it has."""
    away = AWAY[substrate]
    lines = [["zap", "noop"]] + [["noop", "turn_right"]] * (away + 4)
    seen = same(script(rig(substrate, "0 1", headings="EW"), lines))
    gone = np.flatnonzero(~seen.alive[:, 1])
    assert len(gone) == away + 1 and gone[0] == 1
    back = gone[-1] + 1
    np.testing.assert_array_equal(seen.heading[back : back + 3, 1], (seen.heading[back, 1] + np.arange(3)) % 4)
    assert seen.y[back, 1] == 3 and 1 <= seen.x[back, 1] <= 15


@pytest.mark.slow
def test_a_player_whose_cell_is_taken_waits():
    """Legislative rules: everybody comes back on a cell of their own. The zapper stands on it until step 60."""
    rig = Rig("cleanup", n_agents=2, rules="legislative")
    walk = ["turn_left", "forward", "zap", "forward", "forward", "step_left"]
    lines = [[step, "noop"] for step in walk] + [["noop", "noop"]] * (59 - len(walk)) + [["step_right", "noop"]] * 2
    seen = same(script(rig, lines))
    assert places(seen, 0)[59] == (8, 10) == places(seen, 1)[0]
    gone = np.flatnonzero(~seen.alive[:, 1])
    np.testing.assert_array_equal(gone, np.arange(3, 60))
    assert places(seen, 1)[60] == (8, 10)


RIVER = ("FFFFFFF", "FFFFFFF", "FFFFFFF", "FFF0FFF", "FFFFFFF", "FFFFFFF", "FFFFFFF")


@pytest.mark.parametrize("heading", range(4))
def test_a_clean_beam_ends_at_the_first_dirt_of_each_line(heading):
    """Amid dirt the first shot cleans the first cells of the three lines, the next the second, then the third; a fourth
    finds nothing. Every third step a shot."""
    seen = same(script(rig("cleanup", *RIVER, headings="NESW"[heading]), [["clean"]] * 13))
    spots = [(x, y) for y in range(7) for x in range(7) if (x, y) != (3, 3)]
    for depth in (1, 2, 3):
        t = 3 * depth - 2
        changed = [i for i in np.flatnonzero(seen.dirt[t - 1] & ~seen.dirt[t]) if i < len(spots)]
        assert {spots[i] for i in changed} == {tuple(cell + 3) for cell in reached(heading, depth)}
        assert seen.cleaned[t, 0] == 3 and seen.clean_wait[t, 0] == 2
    assert seen.cleaned.sum() == 9 and (seen.clean_wait[[10, 11, 12, 13], 0] == [2, 1, 0, 2]).all()


def test_a_clean_beam_passes_players_and_walls_stop_it():
    seen = same(script(rig("cleanup", "01F", "WWW", "F F", headings="EN"), [["clean", "noop"]]))
    assert seen.cleaned[1].tolist() == [1, 0] and not seen.dirt[1, 0]
    seen = same(script(rig("cleanup", "0WF", "   ", "F F", headings="E"), [["clean"]]))
    assert seen.cleaned[1, 0] == 0


def test_who_cleans_together_is_paid_together_and_others_hear_of_it_a_step_later():
    """Two shoot at one cell in the same step: both count it. What players are told of others comes a step later."""
    room = rig("cleanup", "0F1", "  2", headings="EWN")
    seen = same(script(room, [["clean", "clean", "noop"]] + [["noop"] * 3] * 2))
    assert seen.cleaned[1].tolist() == [1, 1, 0]
    assert seen.others_cleaned[:4].tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 2], [0, 0, 0]]


def test_eating_takes_a_move():
    """Beside an apple waiting, turning and zapping leave it; a move onto it eats it, and a second one finds nothing."""
    room = rig("harvest", "0A", headings="N")
    quiet = ["noop", "turn_right", "zap", "noop", "turn_left", "forward"]
    seen = same(script(room, [[line] for line in (*quiet, "step_right", "step_right")]))
    assert seen.reward[:, 0].tolist() == [0] * 7 + [1, 0]
    assert seen.apple[:, 0].tolist() == [True] * 7 + [False] * 2


def test_what_grows_under_a_player_is_eaten_at_once_and_twice_by_one_who_pushes():
    """All stand where apples grow, beside a clean river: some wait, some turn, some walk into a wall, which counts as
    entering their own cell. Nobody sees an apple there."""
    room = rig("cleanup", "0W1W2W3W4W5W6W7W8", below=["H" * 15] * 4, headings="N" * 9, under="B")
    lines = [["noop"] * 3 + ["turn_left"] * 3 + ["forward"] * 3] * 90
    seen = same(script(room, lines))
    assert not seen.apple.any() and seen.grew.sum() > 9
    assert set(seen.reward[:, :6].flat) == {0, 1} and set(seen.reward[:, 6:].flat) == {0, 2}


def test_eating_in_the_step_in_which_one_is_zapped():
    seen = same(script(rig("harvest", "0  A1", headings="EW"), [["zap", "forward"], ["noop", "noop"]]))
    assert seen.reward[1].tolist() == [0, 1] and seen.alive[1].tolist() == [True, False]


def test_neighbours_count_with_a_lag_and_grass_withers():
    """A lone apple is eaten and its grass withers two steps later; of three in a row the first waits by how many are
    left near it."""
    room = rig("harvest", "0AAA  A1", headings="EW")
    forth, back, go = ["forward", "forward"], ["noop", "backward"], ["forward", "noop"]
    lines = [forth, back, go, go] + [["noop", "noop"]] * 3
    seen = same(script(room, lines))
    assert seen.waits[:4, 3].tolist() == [-1, -1, 0, 0] and seen.dry[:4, 3].tolist() == [False, False, True, True]
    assert seen.waits[:, 0].tolist()[:3] == [-1, -1, 2]
    if not seen.grew.any():
        assert seen.waits[:, 0].tolist() == [-1, -1, 2, 2, 1, 0, 0, 0]
