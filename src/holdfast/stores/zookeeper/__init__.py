"""zookeeper://HOST,HOST,HOST/CHROOT: claims as ephemeral sequential nodes of a ZooKeeper ensemble."""
