-- Version 1. Numbers that are unsigned in Rust keep their bits.

CREATE TABLE meta (
    is_only INTEGER PRIMARY KEY CHECK (is_only = 1),
    epoch INTEGER NOT NULL,
    -- Set in a copy that is a backup: whoever opens it gives it another epoch.
    is_backup INTEGER NOT NULL,
    shards INTEGER NOT NULL
);

CREATE TABLE devices (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    secret BLOB NOT NULL,
    next_secret BLOB,
    created_ms INTEGER NOT NULL,
    revoked_ms INTEGER,
    current_incarnation INTEGER,
    stale INTEGER NOT NULL DEFAULT 0,
    conflicts INTEGER NOT NULL DEFAULT 0,
    interleavings INTEGER NOT NULL DEFAULT 0,
    has_asides INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE incarnations (
    device INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    boot INTEGER,
    nonce INTEGER,
    started_ms INTEGER NOT NULL,
    first_heard_ms INTEGER NOT NULL,
    is_fenced INTEGER NOT NULL,
    is_given_up INTEGER NOT NULL,
    PRIMARY KEY (device, incarnation)
) WITHOUT ROWID;

-- When the boots began that were heard of: the time of records whose device did not know it.
CREATE TABLE boots (
    device INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    boot INTEGER NOT NULL,
    after_ms INTEGER,
    started_ms INTEGER NOT NULL,
    PRIMARY KEY (device, incarnation, boot)
) WITHOUT ROWID;

CREATE TABLE lanes (
    device INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    books BLOB NOT NULL,
    heard_ms INTEGER NOT NULL,
    mark INTEGER NOT NULL,
    mark_ms INTEGER NOT NULL,
    clock_offset_ms INTEGER,
    report_ms INTEGER,
    report BLOB,
    -- What the books say, for those who add up a fleet.
    pending INTEGER NOT NULL,
    unexplained INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    PRIMARY KEY (device, incarnation, lane)
) WITHOUT ROWID;
CREATE INDEX lanes_open ON lanes (device) WHERE pending > 0 OR unexplained > 0 OR lost > 0;

CREATE TABLE shards (
    shard INTEGER PRIMARY KEY,
    head INTEGER NOT NULL
);

-- The log. A place is the shard in the high 16 bits, and the number in the shard.
CREATE TABLE records (
    position INTEGER PRIMARY KEY,
    device INTEGER,
    incarnation INTEGER,
    lane INTEGER,
    counter INTEGER,
    kind INTEGER NOT NULL,
    boot INTEGER,
    uptime_ms INTEGER,
    wall_ms INTEGER,
    received_ms INTEGER NOT NULL,
    body BLOB NOT NULL,
    -- Of ordinary clients.
    tenant TEXT,
    client_key TEXT,
    content_type TEXT
);

-- Where the counters of a lane are in the log: a row for each run of them, not for each record.
CREATE TABLE runs (
    device INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    first INTEGER NOT NULL,
    len INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (device, incarnation, lane, first)
) WITHOUT ROWID;

CREATE TABLE asides (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    device INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    counter INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    aside INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    boot INTEGER NOT NULL,
    uptime_ms INTEGER NOT NULL,
    wall_ms INTEGER,
    received_ms INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (device, incarnation, lane, counter, fingerprint)
);

CREATE TABLE postings (
    tenant TEXT NOT NULL,
    operation TEXT NOT NULL,
    key TEXT NOT NULL,
    hash BLOB NOT NULL,
    state INTEGER NOT NULL, -- 0 in progress, 1 completed, 2 failed
    holder INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    status INTEGER,
    answer BLOB,
    PRIMARY KEY (tenant, operation, key)
) WITHOUT ROWID;
CREATE INDEX postings_by_age ON postings (created_ms);

CREATE TABLE tokens (
    id INTEGER PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    role TEXT NOT NULL,
    tenant TEXT,
    label TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    revoked_ms INTEGER
);
