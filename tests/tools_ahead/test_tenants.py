"""What sessions teach stays within its bounds, and with the tenant."""

from __future__ import annotations

import pytest

from reason_spec.errors import SettingsError
from reason_spec.tools_ahead.held import AheadLimits
from reason_spec.tools_ahead.predictor import Knowledge
from reason_spec.tools_ahead.tenants import Tenant, Tenants
from tests.tools_ahead.some_conversations import READ_ONLY, events


def users(tenant: Tenant) -> list[str]:
    """The users of the conversations that a tenant knows."""
    return [past.calls[0].arguments["user_id"] for past in tenant.knowledge.memory.past.values()]


def test_the_oldest_conversations_are_forgotten_and_the_shared_past_never() -> None:
    past = Knowledge.of([events(100)], READ_ONLY)
    tenant = Tenants(past, max_learned=3, max_tenants=2, limits=AheadLimits()).get("ann")
    for number in range(8):
        tenant.learn(events(number))
    assert users(tenant) == ["nora_100", "nora_5", "nora_6", "nora_7"]
    assert len(past.memory.past) == 1
    expected = Knowledge.of([events(number) for number in (100, 5, 6, 7)], READ_ONLY)
    assert tenant.knowledge.shapes.conversations == expected.shapes.conversations


def test_the_tenant_that_came_longest_ago_is_forgotten() -> None:
    tenants = Tenants(Knowledge(READ_ONLY), max_learned=3, max_tenants=2, limits=AheadLimits())
    for name in ("ann", "bob"):
        tenants.get(name).learn(events(1))
    ann = tenants.get("ann")
    tenants.get("cleo")
    assert tenants.get("ann") is ann
    assert [users(tenants.get(name)) for name in ("ann", "bob")] == [["nora_1"], []]


def test_no_name_is_that_of_the_sessions_without_a_tenant() -> None:
    tenants = Tenants(Knowledge(READ_ONLY), max_learned=3, max_tenants=4, limits=AheadLimits())
    nameless = tenants.get(None)
    assert tenants.get(None) is nameless
    assert all(tenants.get(name) is not nameless for name in ("default", "None", ""))


def test_a_tenant_may_learn_nothing() -> None:
    tenant = Tenants(Knowledge(READ_ONLY), max_learned=0, max_tenants=1, limits=AheadLimits()).get("ann")
    tenant.learn(events(1))
    assert users(tenant) == []
    assert not tenant.knowledge.shapes.conversations


@pytest.mark.parametrize(("learned", "tenants", "named"), [(-1, 1, "max_learned"), (0, 0, "max_tenants")])
def test_a_bound_that_is_too_small_is_refused(learned: int, tenants: int, named: str) -> None:
    with pytest.raises(SettingsError, match=f"{named} is {min(learned, tenants)}"):
        Tenants(Knowledge(READ_ONLY), learned, tenants, AheadLimits())


def test_a_tenant_that_is_forgotten_while_it_is_used_keeps_its_budget() -> None:
    tenants = Tenants(Knowledge(READ_ONLY), max_learned=3, max_tenants=1, limits=AheadLimits())
    ann = tenants.get("ann")
    tenants.get("bob")
    assert tenants.get("ann").budget is ann.budget
