"""Stems join the forms of a word, and opposites stand for each other."""

from __future__ import annotations

import pytest

from reason_spec.verifiers.words import OPPOSITES, stem


@pytest.mark.parametrize(
    "forms",
    [
        "orange oranges",
        "Ana Ana's",
        "price priced pricing prices",
        "city cities",
        "box boxes",
        "class classes",
        "study studies studied",
    ],
)
def test_forms_of_a_word_have_one_stem(forms: str) -> None:
    assert len({stem(word) for word in forms.split()}) == 1


@pytest.mark.parametrize("word", ["a", "is", "us", "was", "bee", "key", "less", "s", ""])
def test_short_words_stay(word: str) -> None:
    assert stem(word) == word


def test_opposites_are_opposites_of_each_other_and_not_of_themselves() -> None:
    for word, others in OPPOSITES.items():
        assert word not in others
        assert all(word in OPPOSITES[other] for other in others)


def test_opposites_are_found_by_their_stems() -> None:
    assert stem("bought") in OPPOSITES[stem("sold")]
    assert stem("cheaper") in OPPOSITES[stem("costlier")]
