"""A GPT trainer in plain JAX: ``python -m train run CONFIG key=value``."""

import time

STARTED = time.time()
"""When this process started, in Unix seconds."""
