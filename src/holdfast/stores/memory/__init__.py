"""memory://NAME: claims in the memory of this process."""
