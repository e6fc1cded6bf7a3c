"""A Cloud TPU API on loopback, backed by real Linux machines on this computer."""
