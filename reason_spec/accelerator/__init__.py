"""An accelerator: settings in, a running system out."""

from reason_spec.accelerator.accelerator import Accelerator
from reason_spec.accelerator.generator import Generator, Solution
from reason_spec.accelerator.requests import GenerationRequest

__all__ = ["Accelerator", "GenerationRequest", "Generator", "Solution"]
