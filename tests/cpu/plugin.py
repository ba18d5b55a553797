"""A pytest plugin under which vLLM's own tests import what they need."""

from tests.cpu.platform import without_compiled_torchvision

without_compiled_torchvision()
