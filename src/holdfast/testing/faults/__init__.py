"""Faults that can be made on one machine: networks that misbehave."""
