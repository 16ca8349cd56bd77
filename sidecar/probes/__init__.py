"""Records -> readings over bounded windows. Pure: no clock, no I/O."""
