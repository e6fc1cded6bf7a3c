"""A GPT trainer in plain JAX: ``python -m train run CONFIG key=value``."""
