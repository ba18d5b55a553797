"""Which GPUs the device code in compiled files serves, and the drivers that it needs."""
