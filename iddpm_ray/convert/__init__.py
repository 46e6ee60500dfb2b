"""Weights that travel: to and from what OpenAI's programs, diffusers and safetensors hold, and their flags as a spec."""
