"""Maps of our own, for machines without Melting Pot: as large as its maps, with the same kinds of cells, laid out anew.

Floor lies wherever `rules.SUBSTRATES` has the players' own cells under legislative rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmrl.envs.melting_pot.rules import SubstrateName

OWN_MAPS: Mapping[SubstrateName, str] = {
    "cleanup": """
WWWWWWWWWWWWWWWWWWWWWWWWWWWWWW
WFHFHFHFHFHFHFHFHFHFHFHFHFHFHW
WHFHFHFHFHFHFHFHFHFHFHFHFHFHFW
WFHFFFHFFFHFFFHFFFHFFFHFFFHFFW
WHFHFHFHFHFHFHFHFHFHFHFHFHFHFW
WFFFHFFFHFFFHFFFHFFFHFFFHFFFHW
WHFHFHFHFHFHFHFHFHFHFHFHFHFHFW
W==================SS========W
W                  SS        W
W   P   P   P   P  SS   P    W
W                  SS        W
W   P   P   P   P  SS   P    W
W                  SS        W
W   P   P   P   P  SS   P    W
W                  SS        W
W^T^T^T^T^T^T^T^T^TSST^T^T^T^W
WBBBBBBBBBBBBBBBBBBBBBBBBBBBBW
WBBBBBBBBBBBBBBBBBBBBBBBBBBBBW
WBBBBBBBBBBBBBBBBBBBBBBBBBBBBW
WBBBBBBBBBBBBBBBBBBBBBBBBBBBBW
WWWWWWWWWWWWWWWWWWWWWWWWWWWWWW
""",
    "harvest": """
WWWWWWWWWWWWWWWWWWWWWWWW
W  A       AA       A  W
W AAA     AAAA     AAA W
WAAAAA   AAAAAA   AAAAAW
W AAA     AAAA     AAA W
W  A       AA       A  W
W                      W
W       Q      Q       W
W   A              A   W
W  AAA            AAA  W
W   A              A   W
W                      W
W                      W
W                      W
W  PPPPPPPPPPPPPPPPPP  W
W PPPPPPPPPPPPPPPPPPPP W
WPPPPPPPPPPPPPPPPPPPPPPW
WWWWWWWWWWWWWWWWWWWWWWWW
""",
}
