"""Where claims live: one package for each store, with all that it consists of."""
