"""Parts of a run outside the core: loop, run contract, mesh, checkpoints, reports and commands."""
