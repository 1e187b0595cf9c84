"""Routers choose between a drafted step and a step written by the target."""

from __future__ import annotations

from reason_spec.routers.base import PairIdentity, Router, StepRoute, create_router, router_names
from reason_spec.routers.features import StepFeatures

__all__ = ["PairIdentity", "Router", "StepFeatures", "StepRoute", "create_router", "router_names"]
