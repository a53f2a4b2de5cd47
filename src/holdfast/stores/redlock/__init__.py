"""redlock://: a majority of independent Redis servers. Connections and addresses are those of the package `redis`."""
