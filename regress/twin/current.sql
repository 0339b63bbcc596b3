-- WHERE CURRENT OF follows the row that was fetched: over changes of it and of its key, not to another row under its key.
CREATE TABLE t (k int PRIMARY KEY, v text);
INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 5) i;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM t ORDER BY k;
FETCH 2 FROM c;
DELETE FROM t WHERE k = 2;
INSERT INTO t VALUES (2, 'new');
UPDATE t SET v = v || ' current' WHERE CURRENT OF c;
DELETE FROM t WHERE CURRENT OF c;
SELECT * FROM t ORDER BY k;
ROLLBACK;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM t ORDER BY k;
FETCH 2 FROM c;
UPDATE t SET k = 500 WHERE CURRENT OF c;
UPDATE t SET v = 'followed' WHERE CURRENT OF c;
UPDATE t SET k = 501, v = v || ' twice' WHERE CURRENT OF c;
INSERT INTO t VALUES (2, 'another');
UPDATE t SET v = v || ' and again' WHERE CURRENT OF c RETURNING *;
SELECT * FROM t ORDER BY k;
DELETE FROM t WHERE CURRENT OF c;
DELETE FROM t WHERE CURRENT OF c;
SELECT * FROM t ORDER BY k;
ROLLBACK;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM t ORDER BY k FOR UPDATE;
FETCH 3 FROM c;
UPDATE t SET v = v || ' once' WHERE CURRENT OF c;
UPDATE t SET v = v || ' twice' WHERE CURRENT OF c;
FETCH 1 FROM c;
DELETE FROM t WHERE CURRENT OF c;
COMMIT;
SELECT * FROM t ORDER BY k;
-- who inserted and who updated, as upserts ask it
INSERT INTO t VALUES (1, 'n'), (1000, 'n') ON CONFLICT (k) DO UPDATE SET v = excluded.v RETURNING k, xmax = 0 AS inserted;
UPDATE t SET v = 'x' WHERE k = 1 RETURNING xmax = 0;
BEGIN;
SELECT k FROM t WHERE k = 3 FOR UPDATE;
UPDATE t SET v = 'y' WHERE k = 3 RETURNING xmax = 0;
COMMIT;
MERGE INTO t USING (VALUES (3, 'm'), (4000, 'm')) s (k, v) ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.k, s.v);
INSERT INTO t SELECT i, 'many' FROM generate_series(1, 4) i ON CONFLICT (k) DO UPDATE SET v = 'upserted' WHERE t.k <> 3 RETURNING k, xmax = 0;
-- the line of a duplicate in COPY
CREATE TABLE lines (k int PRIMARY KEY, u int UNIQUE);
INSERT INTO lines VALUES (7, 7);
COPY lines (k) FROM stdin;
1
2
3
7
5
\.
COPY lines (k, u) FROM stdin;
11	1
12	7
12	3
\.
COPY lines (k) FROM stdin;
21
22
21
23
\.
SELECT * FROM lines;
-- what statistics count
CREATE TABLE counted (k int PRIMARY KEY, s int, v text);
CREATE INDEX ON counted (s);
INSERT INTO counted SELECT i, i % 10, 'v' FROM generate_series(1, 300) i;
ANALYZE counted;
SET enable_seqscan = off;
SET plan_cache_mode = force_custom_plan;
SELECT v FROM counted WHERE k = 5;
SELECT v FROM counted WHERE k = 1000;
SELECT count(v) FROM counted WHERE k BETWEEN 10 AND 19;
SELECT k FROM counted ORDER BY k DESC LIMIT 2;
SELECT count(v) FROM counted WHERE k = ANY ('{1,2,3}');
SET enable_indexscan = off;
SELECT count(v) FROM counted WHERE s = 3;
SELECT count(v) FROM counted WHERE k < 20;
RESET enable_indexscan;
RESET enable_seqscan;
SELECT sum(k) FROM counted;
SELECT pg_stat_force_next_flush();
SELECT pg_sleep(0.01);
SELECT seq_tup_read, idx_scan, idx_tup_fetch, n_tup_ins FROM pg_stat_user_tables WHERE relname = 'counted';
SELECT indexrelname, idx_scan FROM pg_stat_user_indexes WHERE relname = 'counted' ORDER BY 1;
-- a plan made when the table was empty is good when it is not any more
CREATE TABLE early (k int PRIMARY KEY, v text) WITH (autovacuum_enabled = off);
SET plan_cache_mode = force_generic_plan;
PREPARE get(int) AS SELECT v FROM early WHERE k = $1;
EXECUTE get(1);
CREATE FUNCTION plan_of(statement text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE line text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || statement LOOP
        RETURN NEXT regexp_replace(line, '(Bitmap Heap|Index) Scan using \S+ on', 'Scan by index on');
    END LOOP;
END $$;
INSERT INTO early SELECT i, 'a' FROM generate_series(1, 20000) i;
SELECT * FROM plan_of('EXECUTE get(5)');
