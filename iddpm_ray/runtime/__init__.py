"""The only package that imports Ray: one worker group is one attempt."""
