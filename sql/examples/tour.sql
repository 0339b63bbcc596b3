-- A tour of LooseKV: run it with psql on any database, as a superuser.
\set ECHO queries
\set ON_ERROR_STOP on
\pset pager off
CREATE EXTENSION IF NOT EXISTS loosekv;

-- An ordinary table, but its rows live in a log-structured merge tree, ordered by the primary key.
DROP TABLE IF EXISTS sessions;
CREATE TABLE sessions (id uuid PRIMARY KEY, owner int NOT NULL, data text) USING loosekv;

-- Random keys, as fast as sequential ones: a row is appended to a log page, and its key is checked in memory.
\timing on
INSERT INTO sessions
SELECT md5(i::text)::uuid, i % 1000, repeat(md5(i::text), 6) FROM generate_series(1, 300000) i;

-- The same keys again: an upsert writes the new version and nothing else.
INSERT INTO sessions
SELECT md5(i::text)::uuid, i % 1000, 'second ' || i FROM generate_series(1, 100000) i
ON CONFLICT (id) DO UPDATE SET data = excluded.data;
\timing off

-- A point read looks into one run at most.
EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF)
SELECT owner, left(data, 20) FROM sessions WHERE id = md5('77')::uuid;
SELECT owner, left(data, 20) FROM sessions WHERE id = md5('77')::uuid;

-- Order by the key needs no sort, either way.
EXPLAIN (COSTS OFF) SELECT id, owner FROM sessions ORDER BY id DESC LIMIT 3;
SELECT id, owner FROM sessions ORDER BY id DESC LIMIT 3;
SELECT count(*) FROM sessions WHERE id BETWEEN '10000000-0000-0000-0000-000000000000' AND '1fffffff-ffff-ffff-ffff-ffffffffffff';

-- Transactions, savepoints, row locks, constraints: as with any table.
BEGIN;
SAVEPOINT before;
DELETE FROM sessions WHERE owner < 500;
SELECT count(*) FROM sessions;
ROLLBACK TO before;
COMMIT;
SELECT count(*) FROM sessions;
\set ON_ERROR_STOP off
INSERT INTO sessions VALUES (md5('77')::uuid, 1, 'there is one already');
\set ON_ERROR_STOP on

-- Secondary indexes of every kind.
CREATE INDEX ON sessions (owner);
EXPLAIN (COSTS OFF) SELECT count(*) FROM sessions WHERE owner = 77;
SELECT count(*) FROM sessions WHERE owner = 77;

-- What is inside: levels, runs, bytes, and what the key index covers.
SELECT loosekv.flush('sessions');
\x on
SELECT * FROM loosekv.stats WHERE relation = 'sessions'::regclass;
\x off
SELECT * FROM loosekv.runs('sessions');
SELECT loosekv.compact('sessions');
SELECT * FROM loosekv.runs('sessions');
SELECT pg_size_pretty(pg_table_size('sessions')) AS size;
