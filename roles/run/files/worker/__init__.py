"""Links to modules of the collection that the programs of a run's systemd unit import."""
