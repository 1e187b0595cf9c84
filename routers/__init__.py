"""Who writes the next step: the draft's stands, or the target is asked to write its own."""

from __future__ import annotations

from reason_spec.routers.base import Route, Router, StepFeatures, create_router, router_names

__all__ = ["Route", "Router", "StepFeatures", "create_router", "router_names"]
