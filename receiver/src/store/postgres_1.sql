-- Version 1. Numbers that are unsigned in Rust are signed ones of the next size; those of 64 bits keep their bits.
--
-- Rows that change with every batch have room beside them, and nothing that changes with every batch is in an index: then a
-- new version of a row stays in its page, and the old one is cleaned away by whoever comes by next.

CREATE TABLE meta (
    is_only SMALLINT PRIMARY KEY CHECK (is_only = 1),
    version INTEGER NOT NULL,
    shards INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    -- How often the epoch was renewed: of two epochs that a process has read, this one tells the later.
    renewals BIGINT NOT NULL,
    -- Where the epoch was taken. A database that finds itself elsewhere was put back from a copy.
    system_id BIGINT NOT NULL,
    timeline BIGINT NOT NULL,
    database BIGINT NOT NULL
) WITH (fillfactor = 10);

CREATE TABLE devices (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    secret BYTEA NOT NULL,
    next_secret BYTEA,
    created_ms BIGINT NOT NULL,
    revoked_ms BIGINT,
    current_incarnation BIGINT,
    stale BIGINT NOT NULL DEFAULT 0,
    conflicts BIGINT NOT NULL DEFAULT 0,
    interleavings BIGINT NOT NULL DEFAULT 0,
    has_asides BOOLEAN NOT NULL DEFAULT FALSE
) WITH (fillfactor = 90);

CREATE TABLE incarnations (
    device BIGINT NOT NULL,
    incarnation BIGINT NOT NULL,
    boot BIGINT,
    nonce BIGINT,
    started_ms BIGINT NOT NULL,
    first_heard_ms BIGINT NOT NULL,
    is_fenced BOOLEAN NOT NULL,
    is_given_up BOOLEAN NOT NULL,
    PRIMARY KEY (device, incarnation)
) WITH (fillfactor = 90);

-- When the boots began that were heard of: the time of records whose device did not know it.
CREATE TABLE boots (
    device BIGINT NOT NULL,
    incarnation BIGINT NOT NULL,
    boot BIGINT NOT NULL,
    after_ms BIGINT,
    started_ms BIGINT NOT NULL,
    PRIMARY KEY (device, incarnation, boot)
);

CREATE TABLE lanes (
    device BIGINT NOT NULL,
    incarnation BIGINT NOT NULL,
    lane INTEGER NOT NULL,
    books BYTEA NOT NULL,
    heard_ms BIGINT NOT NULL,
    mark BIGINT NOT NULL,
    mark_ms BIGINT NOT NULL,
    clock_offset_ms BIGINT,
    report_ms BIGINT,
    report BYTEA,
    -- What the books say, for those who add up a fleet.
    pending BIGINT NOT NULL,
    unexplained BIGINT NOT NULL,
    lost BIGINT NOT NULL,
    -- The numbers above change with every batch, this seldom does.
    is_open BOOLEAN GENERATED ALWAYS AS (pending > 0 OR unexplained > 0 OR lost > 0) STORED,
    PRIMARY KEY (device, incarnation, lane)
) WITH (fillfactor = 50);
CREATE INDEX lanes_open ON lanes (device) WHERE is_open;

CREATE TABLE shards (
    shard INTEGER PRIMARY KEY,
    head BIGINT NOT NULL
) WITH (fillfactor = 10);

-- The log. A place is the shard in the high 16 bits, and the number in the shard.
CREATE TABLE records (
    position BIGINT PRIMARY KEY,
    device BIGINT,
    incarnation BIGINT,
    counter BIGINT,
    boot BIGINT,
    uptime_ms BIGINT,
    wall_ms BIGINT,
    received_ms BIGINT NOT NULL,
    lane INTEGER,
    kind INTEGER NOT NULL,
    body BYTEA NOT NULL,
    -- Of ordinary clients.
    tenant TEXT,
    client_key TEXT,
    content_type TEXT
);

-- Where the counters of a lane are in the log: a row for each run of them, not for each record.
CREATE TABLE runs (
    device BIGINT NOT NULL,
    incarnation BIGINT NOT NULL,
    lane INTEGER NOT NULL,
    first BIGINT NOT NULL,
    len BIGINT NOT NULL,
    position BIGINT NOT NULL,
    PRIMARY KEY (device, incarnation, lane, first)
);

CREATE TABLE asides (
    id BIGINT PRIMARY KEY,
    device BIGINT NOT NULL,
    incarnation BIGINT NOT NULL,
    lane INTEGER NOT NULL,
    counter BIGINT NOT NULL,
    fingerprint BYTEA NOT NULL,
    aside INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    boot BIGINT NOT NULL,
    uptime_ms BIGINT NOT NULL,
    wall_ms BIGINT,
    received_ms BIGINT NOT NULL,
    body BYTEA NOT NULL,
    UNIQUE (device, incarnation, lane, counter, fingerprint)
);

-- What is kept aside is numbered as the log is: a sequence's numbers would be drawn before commits.
CREATE TABLE arrivals (
    is_only SMALLINT PRIMARY KEY CHECK (is_only = 1),
    head BIGINT NOT NULL
) WITH (fillfactor = 10);
INSERT INTO arrivals (is_only, head) VALUES (1, 0);

CREATE TABLE postings (
    tenant TEXT NOT NULL,
    operation TEXT NOT NULL,
    key TEXT NOT NULL,
    hash BYTEA NOT NULL,
    state INTEGER NOT NULL, -- 0 in progress, 1 completed, 2 failed
    holder BIGINT NOT NULL,
    lease_until_ms BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    status INTEGER,
    answer BYTEA,
    -- Where its record is, for whoever asks again because the answer to a commit was lost.
    position BIGINT,
    PRIMARY KEY (tenant, operation, key)
) WITH (fillfactor = 80);
CREATE INDEX postings_by_age ON postings (created_ms);

CREATE TABLE tokens (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hash BYTEA NOT NULL UNIQUE,
    role TEXT NOT NULL,
    tenant TEXT,
    label TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    revoked_ms BIGINT
);
