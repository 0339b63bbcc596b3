-- Rows that a scan leaves on their page: values at any address, rows that outlive the scan's step, scans that turn round and
-- go from run to run.
CREATE TABLE l (k int PRIMARY KEY, a "char", n numeric, i int8, s text, arr int8[], j jsonb, t text[], z timestamptz, f float8, c char(7), u uuid);
INSERT INTO l SELECT i, chr(97 + i % 26)::"char", i * 1.00001::numeric(20, 5), i * 10000000000, repeat(chr(97 + i % 26), i % 300),
    array_fill(i::int8, ARRAY[i % 40]), jsonb_build_object('i', i, 'l', repeat('x', i % 200)), ARRAY[i::text, repeat('y', i % 150)],
    '2020-01-01 UTC'::timestamptz + i * interval '1 minute', i / 7.0, (i % 1000)::text, md5(i::text)::uuid
FROM generate_series(1, 5000) i;
VACUUM l;
ANALYZE l;

SELECT count(*), sum(n), sum(i), sum(length(s)), sum(arr[3]), sum((j ->> 'i')::int), count(t[2]), max(z), round(sum(f)), min(c), max(u::text) FROM l;
SELECT sum(length(s)), md5(string_agg(s, '' ORDER BY k)) FROM l;
SELECT md5(string_agg(arr::text || j::text || t::text, '' ORDER BY k)) FROM l;
SELECT md5(string_agg(l::text, ',' ORDER BY k)) FROM l;
SELECT count(*), count(DISTINCT ctid), bool_and(tableoid = 'l'::regclass), bool_and(xmin::text <> '0'), bool_and(cmin::text IS NOT NULL) FROM l;
SELECT arr, array_length(arr, 1), t[1], j -> 'i' FROM l WHERE k IN (3, 1700, 4999) ORDER BY k;
ALTER TABLE l ADD COLUMN late text DEFAULT 'late', ADD COLUMN later int;
SELECT count(late), count(later), min(late) FROM l;
INSERT INTO l (k, s, late) VALUES (6000, 'short', 'own');
SELECT s, late, later FROM l WHERE k >= 4999 ORDER BY k;
ALTER TABLE l DROP COLUMN a, DROP COLUMN i;
SELECT sum(n), sum(length(s)), md5(string_agg(l::text, ',' ORDER BY k)) FROM l;

-- The same keys in several runs, then deleted ones, then some that only a transaction sees.
UPDATE l SET s = s || 'new' WHERE k % 3 = 0;
VACUUM l;
DELETE FROM l WHERE k % 5 = 0;
SELECT count(*), sum(length(s)), sum(k) FROM l;
BEGIN;
UPDATE l SET s = 'mine' WHERE k % 7 = 0;
INSERT INTO l (k, s) SELECT i, 'mine' FROM generate_series(7000, 7100) i;
SELECT count(*), sum(length(s)), sum(k) FROM l;
SAVEPOINT a;
DELETE FROM l WHERE k % 11 = 0;
SELECT count(*), sum(length(s)), sum(k) FROM l;
ROLLBACK TO a;
SELECT count(*), sum(length(s)), sum(k) FROM l;
ROLLBACK;
SELECT count(*), sum(length(s)), sum(k) FROM l;

-- Only new keys: run after run.
CREATE TABLE m (k uuid PRIMARY KEY, i int, v text);
INSERT INTO m SELECT md5(i::text)::uuid, i, repeat(md5(i::text), 1 + i % 9) FROM generate_series(1, 12000) i;
VACUUM m;
SELECT count(*), sum(i), sum(length(v)) FROM m;
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT * FROM m;
MOVE 5000 IN c;
MOVE BACKWARD 4000 IN c;
MOVE FORWARD ALL IN c;
MOVE BACKWARD ALL IN c;
MOVE FORWARD ALL IN c;
MOVE 1 IN c;
MOVE BACKWARD 12000 IN c;
FETCH BACKWARD 1 FROM c;
COMMIT;
-- Each row once, forwards and back.
DO $$
DECLARE c SCROLL CURSOR FOR SELECT i FROM m; r int; there bigint := 0; back bigint := 0; seen int[] := '{}'; again int[] := '{}';
BEGIN
    OPEN c;
    LOOP FETCH NEXT FROM c INTO r; EXIT WHEN NOT FOUND; there := there + r; seen := seen || r; EXIT WHEN array_length(seen, 1) = 9000; END LOOP;
    LOOP FETCH PRIOR FROM c INTO r; EXIT WHEN NOT FOUND; back := back + r; again := r || again; END LOOP;
    RAISE NOTICE '% %', there = back + seen[9000], seen[1:8999] = again;
END $$;
-- Written while a scan rests: it sees what it saw when it began.
BEGIN;
DECLARE c CURSOR FOR SELECT i FROM m;
MOVE 100 IN c;
INSERT INTO m SELECT md5(i::text)::uuid, i, 'x' FROM generate_series(20001, 20300) i;
UPDATE m SET v = 'changed' WHERE i % 2 = 0;
DELETE FROM m WHERE i % 3 = 0;
MOVE ALL IN c;
SELECT count(*), sum(i), sum(length(v)) FROM m;
ROLLBACK;
SELECT count(*), sum(i), sum(length(v)) FROM m;
UPDATE m SET v = v || '!' WHERE i % 100 = 0;
SELECT count(*), sum(i), sum(length(v)) FROM m;
SELECT count(*) FROM m a JOIN m b USING (i) WHERE a.v = b.v;
SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SET enable_memoize = off; SET enable_indexscan = off; SET enable_bitmapscan = off;
SELECT count(*) FROM (SELECT i FROM m WHERE i <= 20) a JOIN m b ON a.i = b.i;
RESET ALL;
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_nestloop = off; SET enable_sort = off;
SELECT count(*), sum(a.i) FROM m a JOIN m b USING (k);
RESET ALL;
CREATE INDEX ON m (i);
CREATE INDEX ON m (left(v, 20)) WHERE i % 2 = 1;
SET enable_seqscan = off;
SELECT count(*), sum(i) FROM m WHERE i BETWEEN 500 AND 900;
SELECT count(*) FROM m WHERE left(v, 20) = left(md5('77'), 20) AND i % 2 = 1;
RESET ALL;
DROP TABLE l, m;
