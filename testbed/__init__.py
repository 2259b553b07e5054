"""Real networks on one machine, from the platform files that the simulator reads. README.md says where to begin."""
