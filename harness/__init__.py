"""Code shared by tests and benchmarks: fleets, faults, trainer processes and a scripted API."""
