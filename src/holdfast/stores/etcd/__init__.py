"""etcd://: claims in an etcd cluster. This level is the same for both flavours."""
