"""Words in which two steps exclude each other: cheaper and costlier, can and cannot, another order."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from reason_spec.verifiers.quantities import read_quantities, read_terms
from reason_spec.verifiers.words import OPPOSITES, stem, stemmed_terms

_NEGATION: Final = re.compile(r"\b(?:not|cannot|never|no|none|neither|nor|without)\b|n['’]t\b", re.IGNORECASE)


def other_wording(drafted: str, target: str) -> str | None:
    """Say which words of two steps leave it open that both say the same; None if none do.

    A word counts that one step has more often: "before and before" against "before and after". A step that
    gives against one that receives may say the same, and is left open, too.
    """
    terms = stemmed_terms(drafted), stemmed_terms(target)
    words = Counter(terms[0]), Counter(terms[1])
    of_other = words[1] - words[0]
    for word in words[0] - words[1]:
        if isinstance(word, str) and (found := OPPOSITES.get(word, set()) & of_other.keys()):
            return f"{_written(word, drafted)} in one step, {_written(min(found), target)} in the other"
    if len(_NEGATION.findall(drafted)) != len(_NEGATION.findall(target)):
        return "one step is negated more often"
    calculates = any(read_quantities(text).calculations for text in (drafted, target))
    if terms[0] != terms[1] and words[0] == words[1] and not calculates:
        return "the same words in another order"
    return None


def _written(wanted: str, text: str) -> str:
    words = (term for term in read_terms(text) if isinstance(term, str))
    return next((word for word in words if stem(word) == wanted), wanted)
