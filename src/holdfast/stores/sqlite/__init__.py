"""sqlite:PATH: claims in a file of this host. This level is blocking, and the same for both flavours."""
