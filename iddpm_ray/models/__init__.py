"""Networks that predict noise: the U-Net, its super-resolution form, their initial weights and what they cost."""
