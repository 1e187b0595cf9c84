"""Steps on a terminal or in a pipe, marked by who wrote them."""

from __future__ import annotations

from io import StringIO
from typing import get_args

import pytest
from rich.console import Console

from reason_spec.cli.transcript import Transcript
from reason_spec.types import Origin, Step


@pytest.mark.parametrize("origin", get_args(Origin))
def test_every_writer_has_a_name_in_the_margin(origin: Origin) -> None:
    written = StringIO()
    Transcript(Console(file=written)).print(Step("A step.\n\n", (1,), origin, "boundary"))
    assert written.getvalue().split() == [origin, "|", "A", "step."]
