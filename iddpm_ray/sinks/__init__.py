"""Where a run's numbers and pictures go: files for people and programs, all of them written by rank 0."""
