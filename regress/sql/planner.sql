-- What the planner makes of the key: every shape without a Sort.
SET default_table_access_method = loosekv;
CREATE TABLE t (a int, b text COLLATE "C", v text, n int, PRIMARY KEY (a, b));
INSERT INTO t SELECT i % 1000, 'b' || i, repeat('v', 50), i FROM generate_series(1, 30000) i;
CREATE TABLE s (k int PRIMARY KEY, v text, n int);
INSERT INTO s SELECT i, 'v' || i, i % 100 FROM generate_series(1, 30000) i;
CREATE INDEX s_n ON s (n);
CREATE TABLE h (k int PRIMARY KEY, v text) USING heap;
INSERT INTO h SELECT i, 'h' || i FROM generate_series(1, 30000, 3) i;
VACUUM ANALYZE t, s, h;
-- the key is ours, and its shape is btree's
SELECT c.relname, a.amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.relname IN ('t', 't_pkey', 's_pkey', 's_n', 'h_pkey') ORDER BY 1;
\set explain 'EXPLAIN (COSTS OFF)'
:explain SELECT * FROM s WHERE k = 5;
:explain SELECT * FROM s WHERE k = ANY ('{5,7,9}');
:explain SELECT * FROM s WHERE k IN (5, 7, 9) ORDER BY k;
:explain SELECT * FROM s WHERE k BETWEEN 10 AND 20;
:explain SELECT * FROM s ORDER BY k LIMIT 10;
:explain SELECT * FROM s ORDER BY k DESC LIMIT 10;
:explain SELECT * FROM s WHERE k > 100 ORDER BY k DESC LIMIT 10;
:explain SELECT min(k), max(k) FROM s;
:explain SELECT max(k) FROM s WHERE k < 500;
:explain SELECT * FROM t WHERE a = 5 AND b = 'b5';
:explain SELECT * FROM t WHERE a = 5 ORDER BY b LIMIT 3;
:explain SELECT * FROM t WHERE a = 5 AND b > 'b1' ORDER BY b DESC;
:explain SELECT * FROM t WHERE (a, b) > (5, 'b5') ORDER BY a, b LIMIT 10;
:explain SELECT * FROM t WHERE (a, b) <= (5, 'b5') ORDER BY a DESC, b DESC LIMIT 10;
:explain SELECT DISTINCT ON (a) a, b FROM t ORDER BY a, b LIMIT 5;
:explain SELECT a, count(*) FROM t GROUP BY a ORDER BY a LIMIT 5;
:explain SELECT * FROM t ORDER BY a, n LIMIT 5;
:explain SELECT * FROM s WHERE n = 5 AND k = 7;
-- joins
SET enable_hashjoin = off;
:explain SELECT count(*) FROM s JOIN h USING (k);
:explain SELECT * FROM s JOIN t ON s.k = t.a ORDER BY s.k LIMIT 5;
SET enable_mergejoin = off;
:explain SELECT * FROM h JOIN s USING (k) WHERE h.k < 5;
:explain SELECT * FROM h CROSS JOIN LATERAL (SELECT * FROM s WHERE s.k >= h.k ORDER BY k LIMIT 1) x WHERE h.k < 10;
RESET enable_hashjoin;
RESET enable_mergejoin;
-- writes
:explain UPDATE s SET v = 'x' WHERE k = 5;
:explain DELETE FROM s WHERE k BETWEEN 5 AND 7;
:explain INSERT INTO s VALUES (1) ON CONFLICT (k) DO UPDATE SET v = excluded.v;
:explain MERGE INTO s USING (VALUES (1), (2)) x (k) ON s.k = x.k WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (x.k);
-- all rows, few rows, by a secondary index, by several
:explain SELECT count(*) FROM s;
:explain SELECT * FROM s WHERE v = 'x';
:explain SELECT * FROM s WHERE n = 5;
:explain SELECT * FROM s WHERE ctid = '(0,1)';
-- the crossover: a small part of the table by the key, the most of it by a full scan
:explain SELECT sum(n) FROM s WHERE k < 300;
:explain SELECT sum(n) FROM s WHERE k < 29900 AND v <> 'x';
-- partitions: an Append in order, of our tables and heap's
CREATE TABLE p (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1000);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (1000) TO (2000) USING heap;
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (2000) TO (3000);
INSERT INTO p SELECT i, 'v' FROM generate_series(1, 2999) i;
CREATE TABLE hp (k int, r int, PRIMARY KEY (k)) PARTITION BY HASH (k);
CREATE TABLE hp1 PARTITION OF hp FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE hp2 PARTITION OF hp FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO hp SELECT i, i FROM generate_series(1, 3000) i;
VACUUM ANALYZE p, hp;
:explain SELECT * FROM p ORDER BY k LIMIT 5;
:explain SELECT * FROM p ORDER BY k DESC LIMIT 5;
:explain SELECT * FROM p WHERE k = 1500;
:explain SELECT * FROM hp ORDER BY k LIMIT 5;
:explain SELECT * FROM hp ORDER BY k DESC LIMIT 5;
:explain SELECT max(k) FROM hp;
:explain SELECT * FROM hp WHERE k IN (1, 2, 3) ORDER BY k;
-- generic plans keep the shape
PREPARE point (int) AS SELECT * FROM s WHERE k = $1;
PREPARE many (int[]) AS SELECT * FROM s WHERE k = ANY ($1) ORDER BY k;
PREPARE page (int, text) AS SELECT * FROM t WHERE (a, b) > ($1, $2) ORDER BY a, b LIMIT 10;
SET plan_cache_mode = force_generic_plan;
:explain EXECUTE point (1);
:explain EXECUTE many ('{1,2}');
:explain EXECUTE page (1, 'b');
RESET plan_cache_mode;
-- estimates come out near
CREATE FUNCTION estimate(query text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
    RETURN (plan -> 0 -> 'Plan' ->> 'Plan Rows')::float8::int;
END $$;
SELECT estimate('SELECT * FROM s') BETWEEN 29000 AND 31000, estimate('SELECT * FROM s WHERE k = 5'), estimate('SELECT * FROM t WHERE a = 5') BETWEEN 25 AND 35;
SELECT estimate('SELECT * FROM s WHERE k < 3000') BETWEEN 2500 AND 3500, estimate('SELECT * FROM s WHERE n = 5') BETWEEN 200 AND 400;
INSERT INTO s SELECT i, 'v', 1 FROM generate_series(30001, 60000) i;
SELECT estimate('SELECT * FROM s') BETWEEN 45000 AND 75000;
CREATE TABLE fresh (k int PRIMARY KEY, v text);
SELECT estimate('SELECT * FROM fresh') < 2000;
INSERT INTO fresh SELECT i, i FROM generate_series(1, 10000) i;
SELECT estimate('SELECT * FROM fresh') BETWEEN 5000 AND 20000;
-- so they do while statistics are old, with and without a key: rows are counted as they come and go
CREATE TABLE refilled (k int PRIMARY KEY, v text);
CREATE TABLE keyless (k int, v text);
-- what is being flushed counts twice for a moment
CREATE FUNCTION near(rows int) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
    FOR look IN 1 .. 100 LOOP
        IF (SELECT bool_and(estimate('SELECT * FROM ' || name) BETWEEN rows * 0.8 AND rows * 1.4 + 1)
            FROM unnest('{refilled,keyless}'::text[]) name) THEN
            RETURN true;
        END IF;
        PERFORM pg_sleep(0.1);
    END LOOP;
    RETURN false;
END $$;
INSERT INTO refilled SELECT i, i FROM generate_series(1, 10000) i;
INSERT INTO keyless SELECT * FROM refilled;
VACUUM ANALYZE refilled, keyless;
SELECT near(10000);
UPDATE refilled SET v = 'w';
UPDATE keyless SET v = 'w';
SELECT near(10000);
DELETE FROM refilled WHERE k % 2 = 0;
DELETE FROM keyless WHERE k % 2 = 0;
SELECT near(5000);
SELECT loosekv.flush('refilled'), loosekv.flush('keyless');
SELECT near(5000);
DELETE FROM refilled;
DELETE FROM keyless;
VACUUM refilled, keyless;
SELECT near(0);
INSERT INTO refilled SELECT i, i FROM generate_series(1, 10000) i;
INSERT INTO keyless SELECT * FROM refilled;
SELECT near(10000);
DELETE FROM refilled WHERE k <= 1000;
SELECT loosekv.flush('refilled');
INSERT INTO refilled SELECT i, i FROM generate_series(1, 1000) i;
INSERT INTO refilled SELECT i, i FROM generate_series(1, 1000) i ON CONFLICT (k) DO UPDATE SET v = excluded.v;
UPDATE refilled SET k = -k WHERE k <= 100;
SELECT near(10000);
DROP FUNCTION near;
DROP TABLE refilled, keyless;
-- a text key in another collation is found by equality, and its order is made by a Sort
CREATE TABLE words (w text COLLATE "en-x-icu" PRIMARY KEY);
INSERT INTO words VALUES ('b'), ('a'), ('B'), ('A'), ('ä');
SET enable_seqscan = off;
:explain SELECT * FROM words WHERE w = 'a';
:explain SELECT * FROM words ORDER BY w;
SELECT * FROM words ORDER BY w;
SELECT * FROM words WHERE w > 'a' ORDER BY w;
RESET enable_seqscan;
DROP TABLE t, s, h, p, hp, fresh, words;
DROP FUNCTION estimate;
