-- Rows of bitmaps, which are read in the order of their places: batch after batch, exact and lossy pages, with a limit, again and again,
-- by cursors while the table is changed, flushed and merged, and by parallel workers.
SET max_parallel_workers_per_gather = 0;
SET enable_seqscan = off;
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
\ir shared/settle.sql
CREATE TABLE t (k uuid PRIMARY KEY, i int, a int, b int, v text);
CREATE INDEX t_a ON t (a);
CREATE INDEX t_b ON t (b);
INSERT INTO t SELECT md5(i::text)::uuid, i, i % 1000, i * 7919 % 100003, repeat('v' || i, 1 + i % 30) FROM generate_series(1, 60000) i;
SELECT settle(whole => true);
UPDATE t SET v = v || '+' WHERE i % 9 = 0;
DELETE FROM t WHERE i % 21 = 0;
ANALYZE t;

CREATE FUNCTION looks() RETURNS TABLE (what text, n bigint, s bigint, h text) LANGUAGE plpgsql AS $$
DECLARE condition text;
BEGIN
    FOREACH condition IN ARRAY ARRAY['a < 3', 'a < 40', 'a BETWEEN 100 AND 600', 'a < 300 AND b < 30000', 'a < 20 OR b > 90000', 'a = 7'] LOOP
        RETURN QUERY EXECUTE format('SELECT %L, count(*), sum(i), md5(string_agg(v, '','' ORDER BY i)) FROM t WHERE %s', condition, condition);
    END LOOP;
END $$;
SELECT * FROM looks();
--- lossy pages, all or some of them
SET work_mem = '64kB';
SELECT * FROM looks();
RESET work_mem;
--- in memtables, in runs, and in both, with changes of one's own
BEGIN;
UPDATE t SET v = 'mine' WHERE i % 10 = 0;
DELETE FROM t WHERE i % 50 = 1;
SELECT * FROM looks();
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT * FROM looks();
COMMIT;
SELECT settle(whole => true);
SELECT * FROM looks();
--- no more than some of the rows, again and again
SELECT count(*) FROM (SELECT FROM t WHERE a < 500 LIMIT 1234) x;
SELECT g, EXISTS (SELECT FROM t WHERE a BETWEEN g AND g + 50 AND i % 977 = 5) FROM generate_series(0, 900, 150) g;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_material = off;
SELECT g, n, s FROM generate_series(0, 990, 110) g, LATERAL (SELECT count(*) AS n, sum(i) AS s FROM t WHERE a BETWEEN g AND g + g / 3) x;

--- cursors that rest while the table is changed, flushed and merged
BEGIN;
DECLARE c CURSOR FOR SELECT i, v FROM t WHERE a BETWEEN 200 AND 700;
CREATE TEMP TABLE seen (i int, v text) ON COMMIT DROP;
CREATE FUNCTION take(rows int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE c refcursor := 'c'; row record; n bigint := 0;
BEGIN
    WHILE n < rows LOOP
        FETCH c INTO row;
        EXIT WHEN NOT FOUND;
        INSERT INTO seen VALUES (row.i, row.v);
        n := n + 1;
    END LOOP;
    RETURN n;
END $$;
SELECT take(100);
UPDATE t SET v = 'unseen' WHERE a BETWEEN 300 AND 500;
SELECT take(1000);
DELETE FROM t WHERE a BETWEEN 450 AND 550;
SELECT settle(whole => true);
SELECT take(2500);
INSERT INTO t SELECT md5('new' || i)::uuid, i, i % 1000, 5, 'unseen' FROM generate_series(100001, 105000) i;
SELECT settle(whole => true);
SELECT take(1000000);
SELECT count(*), count(DISTINCT i), sum(i), md5(string_agg(v, ',' ORDER BY i)) FROM seen;
ROLLBACK;
--- what a statement changes it does not meet again
UPDATE t SET a = a + 1, v = v || '!' WHERE a BETWEEN 10 AND 400;
SELECT * FROM looks();
DELETE FROM t WHERE a BETWEEN 300 AND 900;
SELECT * FROM looks();
SELECT settle(whole => true);

--- by parallel workers
ANALYZE t;
SET max_parallel_workers_per_gather = 2;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
CREATE FUNCTION is_parallel(query text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE line text; found boolean := false;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN ' || query LOOP
        found := found OR line LIKE '%Parallel Bitmap Heap Scan%';
    END LOOP;
    RETURN found;
END $$;
SELECT is_parallel('SELECT count(v) FROM t WHERE a < 300');
SELECT count(*), sum(i), sum(length(v)) FROM t WHERE a < 300;
SELECT count(*), sum(i), sum(length(v)) FROM t WHERE a < 20 OR b > 60000;
SET work_mem = '64kB';
SELECT count(*), sum(i), sum(length(v)) FROM t WHERE a < 300;
SET parallel_leader_participation = off;
SELECT count(*), sum(i), sum(length(v)) FROM t WHERE a < 300;
SELECT g, n, s FROM generate_series(0, 200, 100) g, LATERAL (SELECT count(*) AS n, sum(i) AS s FROM t WHERE a BETWEEN g AND g + 90) x;
DROP TABLE t;
