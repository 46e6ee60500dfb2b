"""What a run keeps: attempts, checkpoints that are whole or not there, and which of them to delete."""
