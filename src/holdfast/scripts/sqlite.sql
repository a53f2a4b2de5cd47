-- The embedded store. Times are CLOCK_BOOTTIME seconds of the boot noted in meta.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;

-- A resource that was ever used has a row with seq 0: it keeps the counter of its tokens and has room for one claim,
-- so that taking and freeing a free resource writes a single row. Claims that come while another is there get rows of
-- their own, seq 1 and up, in the order of their arrival.
CREATE TABLE claims (
    namespace TEXT NOT NULL,
    resource  TEXT NOT NULL,
    seq       INTEGER NOT NULL,
    counter   INTEGER NOT NULL,      -- of the resource; meaningful at seq 0 only
    holder    TEXT,                  -- NULL: no claim in this row
    token     INTEGER NOT NULL,      -- 0 while it waits
    weight    INTEGER NOT NULL,
    capacity  INTEGER NOT NULL,
    ttl       REAL NOT NULL,
    expires   REAL NOT NULL,
    flags     INTEGER NOT NULL,      -- 1 fair, 2 detached, 4 kept after its release
    owner     TEXT NOT NULL,
    value     TEXT,
    place     TEXT NOT NULL,         -- process and bell of the claimant
    PRIMARY KEY (namespace, resource, seq)
) WITHOUT ROWID;

-- Fenced registers. The two fence numbers outlive the value.
CREATE TABLE registers (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    value     TEXT NOT NULL,
    token     INTEGER NOT NULL,
    newest    INTEGER NOT NULL,
    exclusive INTEGER NOT NULL,
    expires   REAL,                  -- CLOCK_REALTIME seconds, for it outlives boots; NULL: never
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;
