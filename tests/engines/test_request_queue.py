"""Requests are served by priority, then by arrival, whenever the priorities change."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.request_queue import RequestQueue


@dataclass(eq=False)
class Request:
    priority: int
    arrival: int

    @property
    def order(self) -> tuple[int, int]:
        return self.priority, self.arrival


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_the_present_priorities_count_and_ties_go_by_arrival(priorities: list[tuple[int, int]]) -> None:
    requests = [Request(first, arrival) for arrival, (first, _) in enumerate(priorities)]
    queue: RequestQueue[Request] = RequestQueue()
    for request in requests[::-1]:
        queue.add(request)
    assert list(queue) == sorted(requests, key=lambda request: request.order)
    for request, (_, changed) in zip(requests, priorities, strict=True):
        request.priority = changed
    expected = sorted(requests, key=lambda request: request.order)
    assert queue.last() is expected[-1]
    for request in queue:
        assert request is expected.pop(0)
        queue.remove(request)
    assert len(queue) == 0
