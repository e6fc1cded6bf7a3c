"""What a run needs beside the core: loop, run contract, mesh, checkpoints, reports and commands."""
