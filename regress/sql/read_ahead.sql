-- Reads of many rows ask the kernel for pages before they come to them: those that are not in the buffers.
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
-- Single keys of a list are asked for beforehand as well, in both directions.
ALTER TABLE r SET TABLESPACE pg_default;
SELECT read_ahead('SELECT v FROM r WHERE k = ANY (ARRAY(SELECT generate_series(1, 20000, 200)))') BETWEEN 90 AND 100 AS list;
SELECT read_ahead('SELECT v FROM r WHERE k = ANY (ARRAY(SELECT generate_series(1, 20000, 200)))') AS in_the_buffers;
ALTER TABLE r SET TABLESPACE read_ahead;
SELECT read_ahead('SELECT v FROM r WHERE k = ANY (ARRAY(SELECT generate_series(1, 20000, 200))) ORDER BY k DESC') BETWEEN 90 AND 100 AS list;
ALTER TABLE r SET TABLESPACE pg_default;
SELECT count(*), sum(k), count(DISTINCT v) FROM r WHERE k = ANY (ARRAY(SELECT generate_series(-2000, 30000, 200)) || 7 || NULL);
ALTER TABLE r SET TABLESPACE read_ahead;
-- So are rows that a bitmap names, once or anew for each row of a join.
CREATE INDEX r_other ON r ((k * 7919 % 1000));
ANALYZE r;
SET enable_indexscan = off;
ALTER TABLE r SET TABLESPACE pg_default;
SELECT read_ahead('SELECT v FROM r WHERE k * 7919 % 1000 = 5') BETWEEN 10 AND 20 AS bitmap;
SELECT read_ahead('SELECT v FROM r WHERE k * 7919 % 1000 = 5') AS in_the_buffers;
ALTER TABLE r SET TABLESPACE read_ahead;
SELECT count(*), sum(k), count(v) FROM r WHERE k * 7919 % 1000 IN (5, 6, 700);
ALTER TABLE r SET TABLESPACE pg_default;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_material = off;
SELECT count(*), sum(r.k), count(v) FROM generate_series(1, 999, 50) g, LATERAL (SELECT k, v FROM r WHERE k * 7919 % 1000 = g OFFSET 0) r;
SELECT g, array_agg(k) FROM generate_series(1, 999, 250) g, LATERAL (SELECT k FROM r WHERE k * 7919 % 1000 = g LIMIT 3) r GROUP BY g ORDER BY g;
-- So are those that an index scan will name: it has all of a page of the index at hand.
SET enable_indexscan = on;
SET enable_bitmapscan = off;
ALTER TABLE r SET TABLESPACE read_ahead;
SELECT read_ahead('SELECT v FROM r WHERE k * 7919 % 1000 = 5') BETWEEN 10 AND 20 AS index_scan;
SELECT read_ahead('SELECT v FROM r WHERE k * 7919 % 1000 = 5') AS in_the_buffers;
ALTER TABLE r SET TABLESPACE pg_default;
SELECT read_ahead('SELECT v FROM r WHERE k * 7919 % 1000 = 5 ORDER BY k * 7919 % 1000 DESC') BETWEEN 10 AND 20 AS backward;
SET enable_indexscan = off;
RESET enable_bitmapscan;
-- Parallel workers share the bitmap.
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
ALTER TABLE r SET TABLESPACE read_ahead;
SELECT read_ahead('SELECT count(v) FROM r WHERE k * 7919 % 1000 BETWEEN 300 AND 330') > 100 AS shared;
ALTER TABLE r SET TABLESPACE pg_default;
SELECT count(*), sum(k), count(v) FROM r WHERE k * 7919 % 1000 < 700;
EXPLAIN (COSTS off) SELECT count(*), sum(k), count(v) FROM r WHERE k * 7919 % 1000 < 700;
SET max_parallel_workers_per_gather = 0;
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
RESET enable_hashjoin;
RESET enable_mergejoin;
RESET enable_material;
RESET enable_indexscan;
DROP INDEX r_other;
ALTER TABLE r SET TABLESPACE read_ahead;
-- Turned off as for PostgreSQL's own scans.
SET effective_io_concurrency = 0;
ALTER TABLE r SET TABLESPACE pg_default;
SELECT read_ahead('SELECT v FROM r ORDER BY k LIMIT 1000') AS turned_off;
SELECT read_ahead('SELECT v FROM r WHERE k = ANY (ARRAY(SELECT generate_series(1, 20000, 200)))') AS turned_off;
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
