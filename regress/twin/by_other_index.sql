-- Rows that another index names, which are read together: by bitmap, by scans of the index in both directions, in joins.
SET max_parallel_workers_per_gather = 0;
\ir shared/settle.sql
CREATE TABLE t (k int PRIMARY KEY, n int, v text);
INSERT INTO t SELECT i, i * 7919 % 500, repeat(md5(i::text), 1 + i % 4) FROM generate_series(1, 20000) i;
SELECT settle();
INSERT INTO t SELECT i, i * 7919 % 500, repeat(md5(i::text), 300) FROM generate_series(20001, 20100) i;
UPDATE t SET v = 'changed ' || k WHERE k % 7 = 0;
SELECT settle();
DELETE FROM t WHERE k % 11 = 0;
UPDATE t SET n = n + 1 WHERE k % 13 = 0;
CREATE INDEX t_n ON t (n, k);
INSERT INTO t SELECT i, i * 7919 % 500, 'later' FROM generate_series(30001, 30300) i;
ANALYZE t;

-- All rows in all ways.
CREATE TABLE ways (way text, rows bigint, keys numeric, texts text);
CREATE FUNCTION ways() RETURNS SETOF ways LANGUAGE plpgsql AS $$
DECLARE
    way text;
BEGIN
    FOREACH way IN ARRAY ARRAY['seqscan', 'indexscan', 'bitmapscan'] LOOP
        PERFORM set_config('enable_' || other, CASE WHEN other = way THEN 'on' ELSE 'off' END, true)
        FROM unnest(ARRAY['seqscan', 'indexscan', 'indexonlyscan', 'bitmapscan']) other;
        RETURN QUERY EXECUTE format($q$SELECT %L, count(*), sum(k), md5(string_agg(v, ',' ORDER BY k)) FROM t
            WHERE n BETWEEN 100 AND 320$q$, way);
        RETURN QUERY EXECUTE format($q$SELECT %L, count(*), sum(k), md5(string_agg(v, ',' ORDER BY k)) FROM t
            WHERE n IN (3, 50, 51, 499)$q$, way);
        RETURN QUERY EXECUTE format($q$SELECT %L, count(*), sum(r.k), md5(string_agg(v, ',' ORDER BY r.k)) FROM
            generate_series(1, 500, 9) g, LATERAL (SELECT k, v FROM t WHERE n = g OFFSET 0) r$q$, way);
    END LOOP;
END $$;
SELECT * FROM ways();
-- In a transaction that has changed some of them, and in one that sees nothing but what it has changed.
BEGIN;
UPDATE t SET v = 'mine' WHERE k % 17 = 0;
SAVEPOINT one;
DELETE FROM t WHERE k % 19 = 0;
SELECT * FROM ways();
ROLLBACK TO one;
SELECT * FROM ways();
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT * FROM ways();
COMMIT;

-- In the order of the index, both ways, by cursors, with changes meanwhile.
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_sort = off;
SELECT n, k, left(v, 10) FROM t WHERE n BETWEEN 250 AND 252 ORDER BY n, k LIMIT 13;
SELECT n, k, left(v, 10) FROM t WHERE n BETWEEN 250 AND 252 ORDER BY n DESC, k DESC LIMIT 13;
SELECT count(*), md5(string_agg(k || v, ',')) FROM (SELECT * FROM t WHERE n < 300 ORDER BY n, k) x;
SELECT count(*), md5(string_agg(k || v, ',')) FROM (SELECT * FROM t WHERE n < 300 ORDER BY n DESC, k DESC) x;
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT n, k, left(v, 10) FROM t WHERE n BETWEEN 60 AND 70 ORDER BY n, k;
FETCH 5 FROM c;
UPDATE t SET v = 'unseen' WHERE n BETWEEN 60 AND 65;
DELETE FROM t WHERE n = 66;
FETCH 9 FROM c;
FETCH BACKWARD 7 FROM c;
FETCH BACKWARD ALL FROM c;
FETCH ABSOLUTE 40 FROM c;
FETCH LAST FROM c;
FETCH BACKWARD 5 FROM c;
ROLLBACK;
-- What a statement changes it does not meet again.
UPDATE t SET n = n + 1, v = v || '+' WHERE n BETWEEN 400 AND 440;
SELECT count(*), sum(n), md5(string_agg(v, ',' ORDER BY k)) FROM t;
CREATE FUNCTION touch(key int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    UPDATE t SET v = 'touched' WHERE k = key;
    RETURN key;
END $$;
SELECT count(touch(k)), md5(string_agg(v, ',' ORDER BY n, k)) FROM (SELECT * FROM t WHERE n BETWEEN 10 AND 12 ORDER BY n, k) x;
SELECT count(*) FROM t WHERE v = 'touched';
-- Merge joins come back to where they were.
SET enable_hashjoin = off;
SET enable_nestloop = off;
SET enable_material = off;
SELECT count(*), sum(a.k), sum(b.k) FROM t a JOIN t b USING (n) WHERE a.n < 20 AND b.n < 20;
RESET enable_hashjoin;
RESET enable_nestloop;
-- Rows that stand for themselves alone by now.
DELETE FROM t WHERE k % 2 = 0;
VACUUM t;
RESET enable_seqscan;
RESET enable_bitmapscan;
RESET enable_sort;
SELECT * FROM ways();
DROP TABLE t;
