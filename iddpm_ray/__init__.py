"""Improved-DDPM training as a Ray service."""

__version__ = "0.1.0"
