"""What a trained model can do, and how well: drawing samples and judging them."""
