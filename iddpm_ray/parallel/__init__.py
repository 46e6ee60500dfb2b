"""Ranks that act as one: gathers, replicas, meshes."""
