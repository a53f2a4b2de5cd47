"""What both flavours of the Redis stores share: pure, or blocking nobody."""
