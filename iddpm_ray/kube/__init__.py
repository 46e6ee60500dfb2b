"""A run on Kubernetes: job spec to manifests as plain data, and the rules that judge manifests."""
