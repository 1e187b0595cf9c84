"""Questions that differ from earlier ones in one name or one number."""

from __future__ import annotations

import random
import re
from typing import Final

from reason_spec.pair.wording import NAMES

_REAL_NAMES: Final = (
    "Adam", "Bob", "Bryan", "Carla", "Charleston", "Dave", "Edward", "Eliza", "Frank", "Jackie", "James",
    "Janet", "Jessie", "John", "Josh", "Kylar", "Marco", "Olivia", "Paul", "Philip", "Randy", "Seattle",
    "Toula", "Toulouse", "Wendi",
)  # fmt: skip
"""Names in the real sample problems."""
_KNOWN_NAMES: Final = {*NAMES, *_REAL_NAMES}


def has_name(question: str) -> bool:
    """Tell whether `change_a_name` can change the question."""
    return bool(_names_in(question))


def change_a_name(question: str, rng: random.Random) -> str:
    """Return the question with one of its people called otherwise throughout."""
    found = _names_in(question)
    name = rng.choice(found)
    other = rng.choice([one for one in NAMES if one not in found])
    return re.sub(rf"\b{name}\b", other, question)


def change_a_number(question: str, rng: random.Random) -> str:
    """Return the question with one of its numbers replaced by another of as many digits."""
    found = rng.choice(list(re.finditer(r"\d+", question)))
    low, high = 10 ** (len(found.group()) - 1), 10 ** len(found.group()) - 1
    number = rng.choice([n for n in range(max(2, low), high + 1) if str(n) != found.group()])
    return question[: found.start()] + str(number) + question[found.end() :]


def _names_in(question: str) -> list[str]:
    return sorted(set(re.findall(r"\w+", question)) & _KNOWN_NAMES)
