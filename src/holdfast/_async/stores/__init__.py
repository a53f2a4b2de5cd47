"""The stores that come with holdfast."""
