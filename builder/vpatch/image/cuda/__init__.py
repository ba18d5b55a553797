"""The CUDA code in an image's compiled extensions: which GPUs it is for, and which driver it needs."""
