-- The embedded store, format 1 (PRAGMA user_version). Times are CLOCK_BOOTTIME seconds of the boot noted in meta.
--
-- Every statement names its tables, and SQLite looks them up anew when the schema has changed, inside the statement's own
-- transaction. So the names of the tables are the number that every verb compares, at no cost. A later format must give
-- *all* tables other names (claims_2 ...) in the transaction that sets user_version: a client that has the file open
-- then finds none of its tables, in whatever it does, and reads user_version to say why.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;

-- A resource that was ever used has a row with seq 0: it keeps the counter of its tokens and has room for one claim,
-- so that taking and freeing a free resource changes a single row in place. Claims that come while another is there
-- get rows of their own, seq 1 and up, in the order of their arrival.
CREATE TABLE claims (
    namespace TEXT NOT NULL,
    resource  TEXT NOT NULL,
    seq       INTEGER NOT NULL,
    counter   INTEGER NOT NULL,           -- the last token of the resource; at seq 0 only
    others    INTEGER NOT NULL,           -- how many rows of seq 1 and up there are; at seq 0 only
    holder    TEXT,                       -- NULL: no claim in this row
    token     INTEGER NOT NULL DEFAULT 0, -- 0 while it waits
    expires   REAL NOT NULL DEFAULT 0,
    kept      INTEGER NOT NULL DEFAULT 0, -- 1: released, but staying taken until it expires; 2: broken
    claim     TEXT NOT NULL DEFAULT '',   -- the rest, which no statement looks at: see rows.py
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
    expires   REAL,                       -- CLOCK_REALTIME seconds, for it outlives boots; NULL: never
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;
