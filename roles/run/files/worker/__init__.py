"""Modules of the collection that the programs of a run's unit import."""
