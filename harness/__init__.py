"""Fleets, faults, trainers and a scripted API that tests and benchmarks drive."""
