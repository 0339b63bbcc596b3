-- Ordered reads ask the kernel for pages before they come to them: those that are not in the buffers.
CREATE TABLE r (k int PRIMARY KEY, v text) USING loosekv;
INSERT INTO r SELECT i, repeat('v', 250) FROM generate_series(1, 20000) i;
SELECT loosekv.compact('r');
CREATE FUNCTION read_ahead(query text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE plan jsonb;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, FORMAT json) ' || query INTO plan;
    RETURN plan -> 0 -> 'LooseKV' -> 'Read Ahead';
END $$;
-- A table that moves takes a new file, of which nothing is in the buffers.
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE read_ahead LOCATION '';
SET max_parallel_workers_per_gather = 0;
SET enable_seqscan = off;
ALTER TABLE r SET TABLESPACE read_ahead;
SELECT read_ahead('SELECT * FROM r WHERE k = 17') AS point;
SELECT read_ahead('SELECT v FROM r ORDER BY k LIMIT 1000') > 10 AS forwards;
SELECT read_ahead('SELECT v FROM r ORDER BY k DESC LIMIT 1000') > 10 AS backwards;
SELECT count(v) FROM (SELECT v FROM r ORDER BY k) x;
SELECT read_ahead('SELECT v FROM r ORDER BY k LIMIT 1000') AS in_the_buffers;
SELECT read_ahead('SELECT v FROM r ORDER BY k DESC') AS in_the_buffers;
-- Turned off as for PostgreSQL's own scans.
SET effective_io_concurrency = 0;
ALTER TABLE r SET TABLESPACE pg_default;
SELECT read_ahead('SELECT v FROM r ORDER BY k LIMIT 1000') AS turned_off;
RESET effective_io_concurrency;
-- Whatever was asked for, the rows are the same: in a file that was cut, in another one, and while one scan outlives it.
SELECT count(*), min(k), max(k) FROM (SELECT k FROM r ORDER BY k) x;
BEGIN;
DECLARE walk CURSOR FOR SELECT k FROM r ORDER BY k;
FETCH 3 FROM walk;
SAVEPOINT before;
DELETE FROM r WHERE k % 2 = 0;
ROLLBACK TO before;
MOVE 9000 FROM walk;
FETCH 2 FROM walk;
COMMIT;
DELETE FROM r WHERE k > 500;
VACUUM FULL r;
SELECT count(*), min(k), max(k) FROM (SELECT k FROM r ORDER BY k) x;
TRUNCATE r;
SELECT count(*) FROM (SELECT k FROM r ORDER BY k) x;
INSERT INTO r SELECT i, repeat('v', 250) FROM generate_series(1, 5000) i;
SELECT loosekv.flush('r');
SELECT count(*), min(k), max(k) FROM (SELECT k FROM r ORDER BY k DESC) x;
DROP TABLE r;
DROP TABLESPACE read_ahead;
DROP FUNCTION read_ahead;
