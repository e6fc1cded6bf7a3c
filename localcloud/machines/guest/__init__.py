"""Programs that run inside every machine, like Google's guest environment."""
