"""The diffusion process."""
