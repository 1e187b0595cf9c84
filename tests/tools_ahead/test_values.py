"""Values of a conversation: where each comes from, and forms of words."""

from __future__ import annotations

import json

from reason_spec.tools_ahead.calls import Call, Called, Returned, Said
from reason_spec.tools_ahead.values import MAX_VALUES, Aliases, kind_of, values_of


def origins(event: Said | Called | Returned, key: object, aliases: Aliases | None = None) -> set[str]:
    values = values_of(event, (aliases or Aliases(),), 2024)
    return {value.origin for value in values if value.key == json.dumps(key)}


def test_a_result_gives_its_leaves_with_paths_and_positions() -> None:
    text = json.dumps({"cards": {"card_7": {"left": 5}}, "trips": [{"day": "Mon"}, {"day": "Tue"}]})
    values = values_of(Returned(Call.of("get", {}), text), (), None)
    assert [(v.origin, v.indices) for v in values if v.key == '"Tue"'] == [("result get trips[].day", (1,))]
    # A key with digits is an id: a value of its own, and no name in the path.
    assert [v.origin for v in values if v.key == '"card_7"'] == ["result get cards.~"]
    assert [v.origin for v in values if v.key == "5"] == ["result get cards.*.left"]


def test_words_of_texts_are_named_by_their_form_and_the_word_before() -> None:
    assert origins(Said("user", "My id is mia_li_3668."), "mia_li_3668") == {
        "user a_a_9",
        "user a_a_9 after is",
    }
    assert origins(Said("user", "Look at 8JX2WO"), "8JX2WO") == {"user A9:6", "user A9:6 after at"}
    assert kind_of("hello") is None
    assert kind_of("I") is None
    assert kind_of("src/app.py") == "a/a.a"


def test_dates_without_a_year_take_the_conversations_year() -> None:
    assert "user 9-9-9" in origins(Said("user", "I leave on May 20th."), "2024-05-20")
    assert "user 9-9-9" in origins(Said("user", "I leave on the 3rd of June 2025"), "2025-06-03")
    assert "user 9-9-9 +1 day" in origins(Said("user", "a day after May 31"), "2024-06-01")
    assert not origins(Said("user", "on February 30"), "2024-02-30")


def test_the_last_day_of_the_calendar_has_one_neighbour() -> None:
    forever = Returned(Call.of("get", {}), json.dumps({"until": "9999-12-31"}))
    assert origins(forever, "9999-12-30")
    assert origins(forever, "9999-12-31")


def test_a_name_stands_for_the_code_that_a_text_wrote_beside_it() -> None:
    aliases = Aliases()
    aliases.learn("There are flights to New York (JFK) and Seattle (SEA).")
    found = origins(Said("user", "I fly from new york"), "JFK", aliases)
    assert found == {"user alias", "user alias after from"}
    assert not origins(Said("user", "I fly from Boston"), "BOS", aliases)


def test_a_long_result_is_cut() -> None:
    text = json.dumps([{"n": number} for number in range(5 * MAX_VALUES)])
    assert len(values_of(Returned(Call.of("get", {}), text), (), None)) == MAX_VALUES
