"""How events reach people: logging here; metrics and traces come as observers of the same stream."""
