-- Rows of which few fit a page: pages of a run share them with their neighbours.
CREATE TABLE t (k uuid PRIMARY KEY, n int, v text, w bytea);
CREATE FUNCTION key(n int) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$ SELECT md5(n::text)::uuid $$;
-- Text that does not compress, of 600 to 1900 bytes; and one of that many bytes for all.
CREATE FUNCTION noise(n int, length int) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$ SELECT left(string_agg(encode(sha512((n * 31 + i)::text::bytea), 'base64'), ''), length) FROM generate_series(0, length / 88) i $$;
INSERT INTO t SELECT key(n), n, noise(n, 600 + n * 7 % 1300), NULL FROM generate_series(1, 4000) n;
CREATE TABLE even (k uuid PRIMARY KEY, v text) ;
INSERT INTO even SELECT key(n), noise(n, 1024) FROM generate_series(1, 4000) n;
VACUUM t;
VACUUM even;
SELECT count(*), sum(length(v)), md5(string_agg(v, ',' ORDER BY k)) FROM t;
SELECT count(*), sum(length(v)), md5(string_agg(v, ',' ORDER BY k DESC)) FROM even;
-- Each by its key, in both directions, from the middle.
SELECT count(*) FROM generate_series(1, 4100) n JOIN LATERAL (SELECT v FROM t WHERE k = key(n) OFFSET 0) found ON v = noise(n, 600 + n * 7 % 1300);
SELECT count(*) FROM generate_series(1, 4100) n JOIN LATERAL (SELECT v FROM even WHERE k = key(n) OFFSET 0) found ON v = noise(n, 1024);
SELECT n, md5(v) FROM t WHERE k >= '80000000-0000-0000-0000-000000000000' ORDER BY k LIMIT 20;
SELECT n, md5(v) FROM t WHERE k < '80000000-0000-0000-0000-000000000000' ORDER BY k DESC LIMIT 20;
SELECT md5(v) FROM even WHERE k > key(17) ORDER BY k LIMIT 20;
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT n, left(v, 10), right(v, 10) FROM t ORDER BY k;
FETCH 12 FROM c;
FETCH BACKWARD 9 FROM c;
MOVE 3000 IN c;
FETCH 5 FROM c;
FETCH BACKWARD 12 FROM c;
COMMIT;
-- Without the rows' end, then with it; through a secondary index; in a merge with newer versions.
SELECT count(*), sum(n) FROM t WHERE k > key(1);
SELECT sum(length(v)), max(right(v, 3)) FROM t;
CREATE INDEX ON t (n);
SELECT n, md5(v) FROM t WHERE n BETWEEN 100 AND 110 ORDER BY n;
UPDATE t SET v = v || 'x', w = decode(md5(v), 'hex') WHERE n % 3 = 0;
DELETE FROM t WHERE n % 7 = 0;
INSERT INTO even SELECT key(n), noise(-n, 1900) FROM generate_series(3000, 6000) n ON CONFLICT (k) DO UPDATE SET v = excluded.v;
VACUUM t;
VACUUM even;
SELECT count(*), sum(length(v)), md5(string_agg(v || coalesce(w::text, ''), ',' ORDER BY k)) FROM t;
SELECT count(*), sum(length(v)), md5(string_agg(v, ',' ORDER BY k)) FROM even;
SELECT n, md5(v), w FROM t WHERE n BETWEEN 200 AND 210 ORDER BY n;
SELECT count(*) FROM generate_series(1, 6100) n JOIN LATERAL (SELECT v FROM even WHERE k = key(n) OFFSET 0) found
    ON v = CASE WHEN n < 3000 THEN noise(n, 1024) ELSE noise(-n, 1900) END;
-- Held in sorts and slots while others come.
SELECT a.n, b.n, length(a.v || b.v) FROM t a JOIN t b ON a.n = b.n + 1 WHERE a.n BETWEEN 40 AND 60 ORDER BY a.v COLLATE "C";
SELECT count(*) FROM t a JOIN even b USING (k) WHERE left(a.v, 500) = left(b.v, 500);
