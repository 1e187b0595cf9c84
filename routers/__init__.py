"""Who writes the next step: the draft's stands, or the target is asked to write its own."""

from __future__ import annotations

from reason_spec.routers.base import PairIdentity, Route, Router, create_router, router_names
from reason_spec.routers.features import StepFeatures

__all__ = ["PairIdentity", "Route", "Router", "StepFeatures", "create_router", "router_names"]
