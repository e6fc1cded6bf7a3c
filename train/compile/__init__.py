"""Compile a training step for a TPU slice on a machine without a TPU, and estimate its cost."""
