"""redis://, alone, behind Sentinel or as a cluster. This level is shared by both flavours: pure, or blocking nobody."""
