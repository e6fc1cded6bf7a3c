"""The guest's part: what runs inside every machine, as Google's guest environment does there."""
