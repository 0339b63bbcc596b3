-- The tables that the cases share.
CREATE TABLE kv (k bigint PRIMARY KEY, a int, b int, c text, d timestamptz DEFAULT now());
INSERT INTO kv SELECT i * 7919 % 1000003, i % 1000, i, md5(i::text) || md5((i + 1)::text), now() FROM generate_series(1::bigint, 1000000) i;
CREATE TABLE other (k bigint PRIMARY KEY, a int, c text);
INSERT INTO other SELECT i * 10, i, 'x' || i FROM generate_series(1, 100000) i;
CREATE TABLE indexed (k bigint PRIMARY KEY, a int, b int, c text);
CREATE INDEX ON indexed (a);
CREATE INDEX ON indexed (b);
INSERT INTO indexed SELECT i * 7919 % 1000003, i % 1000, i * 104729 % 1000003, md5(i::text) FROM generate_series(1::bigint, 500000) i;
CREATE TABLE texts (k text PRIMARY KEY, v int);
INSERT INTO texts SELECT md5(i::text), i FROM generate_series(1, 500000) i;
CREATE TABLE events (at timestamptz, id bigint, v text, PRIMARY KEY (at, id));
INSERT INTO events SELECT '2026-01-01'::timestamptz + i % 500000 * interval '1 s', i, md5(i::text) FROM generate_series(1, 500000) i;
CREATE TABLE parents (k int PRIMARY KEY, c text);
INSERT INTO parents SELECT i, 'p' FROM generate_series(1, 10000) i;

-- count(*)
SELECT count(*) FROM kv;

-- sum of a column
SELECT sum(b), max(c) FROM kv;

-- GROUP BY
SELECT a, count(*) FROM kv GROUP BY a ORDER BY 1 LIMIT 1;

-- full scan with a filter
SELECT count(*) FROM kv WHERE c LIKE '%abc%';

-- all rows in order
SELECT count(c) FROM (SELECT k, c FROM kv ORDER BY k OFFSET 0) x;

-- all rows in descending order
--+ SET enable_sort = off;
SELECT count(c) FROM (SELECT k, c FROM kv ORDER BY k DESC OFFSET 0) x;

-- a tenth of the rows by key
--+ SET enable_seqscan = off;
--+ SET enable_bitmapscan = off;
SELECT sum(b) FROM kv WHERE k BETWEEN 100000 AND 200000;

-- nested loop by key, 100,000 rows
--+ SET enable_hashjoin = off;
--+ SET enable_mergejoin = off;
SELECT count(kv.c) FROM other JOIN kv ON kv.k = other.k;

-- merge join by key
--+ SET enable_hashjoin = off;
--+ SET enable_nestloop = off;
SELECT count(kv.c) FROM other JOIN kv ON kv.k = other.k;

-- hash join
--+ SET enable_mergejoin = off;
--+ SET enable_nestloop = off;
SELECT count(kv.c) FROM other JOIN kv ON kv.k = other.k;

-- anti join by key
--+ SET enable_hashjoin = off;
--+ SET enable_mergejoin = off;
SELECT count(*) FROM other WHERE NOT EXISTS (SELECT FROM kv WHERE kv.k = other.k + 1000000);

-- nested loop by a secondary index
--+ SET enable_hashjoin = off;
--+ SET enable_mergejoin = off;
--+ SET enable_bitmapscan = off;
--+ SET enable_seqscan = off;
SELECT count(s.c) FROM generate_series(1, 100000) g JOIN indexed s ON s.b = g;

-- bitmap of a secondary index, 5 % of the rows
--+ SET enable_indexscan = off;
--+ SET enable_seqscan = off;
SELECT count(c) FROM indexed WHERE a BETWEEN 10 AND 60;

-- bitmap of a secondary index, a quarter of the rows
--+ SET enable_indexscan = off;
--+ SET enable_seqscan = off;
SELECT count(c) FROM indexed WHERE a < 250;

-- first of each key prefix, 50,000 times
SELECT count(v) FROM generate_series(1, 50000) g JOIN LATERAL (SELECT v FROM events WHERE at = '2026-01-01'::timestamptz + g * interval '1 s' ORDER BY id LIMIT 1) x ON true;

-- 50 rows in order, 5,000 times
DO $$ DECLARE x bigint; BEGIN FOR j IN 1..5000 LOOP SELECT count(c) INTO x FROM (SELECT c FROM kv WHERE k > j * 17 ORDER BY k LIMIT 50) y; END LOOP; END $$;

-- 50 rows in descending order, 5,000 times
DO $$ DECLARE x bigint; BEGIN FOR j IN 1..5000 LOOP SELECT count(c) INTO x FROM (SELECT c FROM kv WHERE k < 1000000 - j * 17 ORDER BY k DESC LIMIT 50) y; END LOOP; END $$;

-- 50 rows in order, of rows just inserted, 5,000 times
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k bigint PRIMARY KEY, v text);
--+ INSERT INTO fresh SELECT i, md5(i::text) FROM generate_series(1, 100000) i;
DO $$ DECLARE x bigint; BEGIN FOR j IN 1..5000 LOOP SELECT count(v) INTO x FROM (SELECT v FROM fresh WHERE k > j * 19 ORDER BY k LIMIT 50) y; END LOOP; END $$;

-- the latest 50 rows just inserted, 5,000 times
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k bigint PRIMARY KEY, v text);
--+ INSERT INTO fresh SELECT i, md5(i::text) FROM generate_series(1, 100000) i;
DO $$ DECLARE x bigint; BEGIN FOR j IN 1..5000 LOOP SELECT count(v) INTO x FROM (SELECT v FROM fresh ORDER BY k DESC LIMIT 50) y; END LOOP; END $$;

-- full scan of rows just inserted
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k bigint PRIMARY KEY, v text);
--+ INSERT INTO fresh SELECT i, md5(i::text) FROM generate_series(1, 200000) i;
SELECT count(v) FROM fresh;

-- gets in PL/pgSQL, 100,000
DO $$ DECLARE x text; BEGIN FOR i IN 1..100000 LOOP SELECT c INTO x FROM kv WHERE k = i; END LOOP; END $$;

-- gets by text key, 100,000
--+ SET enable_hashjoin = off;
--+ SET enable_mergejoin = off;
SELECT count(v) FROM generate_series(1, 100000) g JOIN texts ON texts.k = md5(g::text);

-- = ANY of 1,000 keys, 50 times
DO $$ DECLARE x bigint; keys bigint[]; BEGIN FOR j IN 1..50 LOOP SELECT array_agg(i * 37 + j) INTO keys FROM generate_series(1, 1000) i; SELECT count(c) INTO x FROM kv WHERE k = ANY (keys); END LOOP; END $$;

-- FOR UPDATE of 100,000 rows
--+ BEGIN;
SELECT count(*) FROM (SELECT FROM other FOR UPDATE) x;

-- TABLESAMPLE
SELECT count(*) FROM kv TABLESAMPLE system (5);
SELECT count(*) FROM kv TABLESAMPLE bernoulli (5);

-- INSERT ... SELECT, ascending keys, 200,000 rows
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k bigint PRIMARY KEY, v text);
INSERT INTO fresh SELECT i, 'abc' FROM generate_series(1, 200000) i;

-- INSERT ... SELECT, random keys, 200,000 rows
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k uuid PRIMARY KEY, v text);
INSERT INTO fresh SELECT gen_random_uuid(), 'abc' FROM generate_series(1, 200000) i;

-- INSERT ... SELECT, two other indexes, 200,000 rows
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k bigint PRIMARY KEY, a int, b int);
--+ CREATE INDEX ON fresh (a);
--+ CREATE INDEX ON fresh (b);
INSERT INTO fresh SELECT i * 7919 % 1000003, i % 1000, i FROM generate_series(1::bigint, 200000) i;

-- INSERT ... SELECT, no key, 300,000 rows
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k bigint, v text);
INSERT INTO fresh SELECT i, 'abcdefgh' FROM generate_series(1, 300000) i;

-- INSERT in PL/pgSQL, 50,000 rows
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k bigint PRIMARY KEY, v text);
DO $$ BEGIN FOR i IN 1..50000 LOOP INSERT INTO fresh VALUES (i, 'abc'); END LOOP; END $$;

-- INSERT of rows with a foreign key, 100,000
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k int PRIMARY KEY, p int REFERENCES parents);
INSERT INTO fresh SELECT i, i % 10000 + 1 FROM generate_series(1, 100000) i;

-- INSERT of large values, 500 of 100 kB
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k int PRIMARY KEY, v bytea);
INSERT INTO fresh SELECT i, (SELECT string_agg(sha512((i * 2000 + j)::text::bytea), '') FROM generate_series(1, 1600) j) FROM generate_series(1, 500) i;

-- ON CONFLICT DO NOTHING, all are there, 100,000 rows
INSERT INTO other SELECT i * 10, 1, 'x' FROM generate_series(1, 100000) i ON CONFLICT DO NOTHING;

-- ON CONFLICT DO UPDATE, 100,000 rows
--+ BEGIN;
INSERT INTO other SELECT i * 10, 1, 'y' FROM generate_series(1, 100000) i ON CONFLICT (k) DO UPDATE SET a = excluded.a;

-- MERGE, half updates, half inserts, 100,000 rows
--+ BEGIN;
MERGE INTO other o USING (SELECT i * 5 AS k FROM generate_series(1, 100000) i) s ON o.k = s.k WHEN MATCHED THEN UPDATE SET a = 0 WHEN NOT MATCHED THEN INSERT VALUES (s.k, 1, 'n');

-- UPDATE of 200,000 rows
--+ BEGIN;
UPDATE kv SET a = a + 1 WHERE k < 200000;

-- UPDATE of an indexed column, 100,000 rows
--+ BEGIN;
UPDATE indexed SET a = a + 1 WHERE k < 100000;

-- UPDATE of the key, 100,000 rows
--+ BEGIN;
UPDATE other SET k = k + 1;

-- DELETE of 200,000 rows
--+ BEGIN;
DELETE FROM kv WHERE k < 200000;

-- DELETE of all rows just inserted, 200,000
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k bigint PRIMARY KEY, v text);
--+ INSERT INTO fresh SELECT i, md5(i::text) FROM generate_series(1, 200000) i;
DELETE FROM fresh;

-- VACUUM after a third was deleted, 300,000 rows
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k int PRIMARY KEY, v text);
--+ INSERT INTO fresh SELECT i, 'abc' FROM generate_series(1, 300000) i;
--+ DELETE FROM fresh WHERE k % 3 = 0;
VACUUM fresh;

-- CREATE TABLE AS, 1,000,000 rows
--+ DROP TABLE IF EXISTS fresh;
CREATE TABLE fresh AS SELECT * FROM kv;

-- a table that is made and loaded in one transaction, 1,000,000 rows
--+ DROP TABLE IF EXISTS fresh;
--+ BEGIN;
--+ CREATE TABLE fresh (k bigint PRIMARY KEY, a int, b int, c text);
INSERT INTO fresh SELECT k, a, b, c FROM kv;

-- ADD PRIMARY KEY, 1,000,000 rows
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh AS SELECT * FROM kv;
ALTER TABLE fresh ADD PRIMARY KEY (k);

-- ALTER COLUMN TYPE, 200,000 rows
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k bigint PRIMARY KEY, a int);
--+ INSERT INTO fresh SELECT i, i FROM generate_series(1, 200000) i;
ALTER TABLE fresh ALTER a TYPE bigint;

-- VACUUM FULL, 200,000 rows
--+ DROP TABLE IF EXISTS fresh;
--+ CREATE TABLE fresh (k bigint PRIMARY KEY, v text);
--+ INSERT INTO fresh SELECT i * 7919 % 200003, md5(i::text) FROM generate_series(1, 200000) i;
VACUUM FULL fresh;

-- CREATE INDEX
--+ DROP INDEX IF EXISTS kv_b;
CREATE INDEX kv_b ON kv (b);
DROP INDEX kv_b;

-- CREATE INDEX CONCURRENTLY
--+ DROP INDEX IF EXISTS kv_b;
CREATE INDEX CONCURRENTLY kv_b ON kv (b);

-- REINDEX
--+ DROP INDEX IF EXISTS kv_b;
REINDEX TABLE other;

-- ANALYZE
ANALYZE kv;

-- 200 small tables made, filled and dropped
DO $$ BEGIN FOR i IN 1..200 LOOP CREATE TABLE small (k int PRIMARY KEY, v text); INSERT INTO small SELECT g, 'a' FROM generate_series(1, 10) g; DROP TABLE small; END LOOP; END $$;
