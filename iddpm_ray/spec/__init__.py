"""The job spec: everything a run is told, typed, described, and refused early when it cannot work."""
