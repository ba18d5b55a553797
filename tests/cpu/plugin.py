"""A pytest plugin under which vLLM's own tests import what they need."""

from tests.cpu.platform import stand_in_for_torchvision

stand_in_for_torchvision()
