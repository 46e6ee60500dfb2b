"""The training program: state, one step, the loop, and the protocol through which it meets its cluster."""
