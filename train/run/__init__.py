"""What a run needs beside the core: run contract, mesh, checkpoints, measurements and commands."""
