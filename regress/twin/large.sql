-- Rows and values of every size; values that come compressed, out of line, or short; rows that change size.
CREATE TABLE t (k int PRIMARY KEY, v text, b bytea, j jsonb);
INSERT INTO t VALUES (1, repeat('abc', 1000), NULL, '{"a": [1, 2, {"b": null}]}'),
    (2, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 3000) i), decode(repeat('00ff', 5000), 'hex'), '[]'),
    (3, repeat('z', 5000000), NULL, NULL),
    (4, '', '', 'null');
SELECT k, length(v), md5(v), length(b), md5(b), j FROM t ORDER BY k;
SELECT k, substr(v, 4999990, 20), left(v, 5), right(v, 5) FROM t ORDER BY k;
UPDATE t SET v = v || v WHERE k < 4;
SELECT k, length(v), md5(v) FROM t ORDER BY k;
UPDATE t SET j = jsonb_build_object('k', k, 'v', left(v, 20000));
SELECT k, length(j::text), md5(j::text) FROM t ORDER BY k;
UPDATE t SET v = NULL WHERE k = 2;
SELECT k, v IS NULL, length(b) FROM t ORDER BY k;
-- from a heap table, compressed and out of line, and back
CREATE TABLE h (k int PRIMARY KEY, v text) USING heap;
ALTER TABLE h ALTER v SET STORAGE EXTERNAL;
INSERT INTO h SELECT i, repeat(chr(64 + i), 20000 * i) FROM generate_series(1, 5) i;
INSERT INTO t SELECT k + 10, v FROM h;
DROP TABLE h;
SELECT k, length(v), left(v, 3) FROM t WHERE k > 10 ORDER BY k;
INSERT INTO t SELECT k + 100, v FROM t WHERE k > 10;
SELECT count(*), sum(length(v)) FROM t WHERE k > 100;
-- in secondary indexes, triggers, sorts, aggregates, functions
CREATE INDEX ON t (md5(v));
CREATE INDEX ON t ((left(v, 100)));
SELECT k FROM t WHERE md5(v) = md5(repeat('C', 60000)) ORDER BY k;
SELECT k FROM t WHERE k > 10 ORDER BY v, k;
CREATE FUNCTION grow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN new.v := coalesce(old.v, '') || new.v; RETURN new; END $$;
CREATE TRIGGER grow BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION grow();
UPDATE t SET v = repeat('+', 30000) WHERE k = 4 RETURNING length(v);
UPDATE t SET v = '!' WHERE k = 4 RETURNING length(v);
DO $$
DECLARE r record; x text;
BEGIN
    FOR r IN SELECT * FROM t WHERE k > 10 ORDER BY k LOOP
        UPDATE t SET v = '-' WHERE k = r.k;
        x := coalesce(x, '') || length(r.v) || ' ';
    END LOOP;
    RAISE NOTICE '%', x;
END $$;
SELECT sum(length(v)) FROM t WHERE k > 10;
DROP TRIGGER grow ON t;
-- wide rows
DO $$ BEGIN EXECUTE 'CREATE TABLE wide (k int PRIMARY KEY, ' || (SELECT string_agg(format('c%s int DEFAULT %s', i, i), ', ') FROM generate_series(1, 400) i) || ')'; END $$;
INSERT INTO wide (k) SELECT i FROM generate_series(1, 200) i;
UPDATE wide SET c7 = NULL, c399 = -1 WHERE k % 2 = 0;
SELECT sum(c1), sum(c7), sum(c399), sum(c400), count(*) FROM wide;
ALTER TABLE wide ADD COLUMN late text DEFAULT 'late', DROP COLUMN c200;
SELECT k, c199, c201, late FROM wide WHERE k = 100;
SELECT wide FROM wide WHERE k = 3;
-- keys of every length up to the limit
CREATE TABLE keys (k text PRIMARY KEY, n int);
INSERT INTO keys SELECT repeat('k', i), i FROM generate_series(0, 1800, 100) i;
SELECT n FROM keys WHERE k = repeat('k', 1800);
SELECT n FROM keys ORDER BY k DESC LIMIT 2;
SELECT n FROM keys WHERE k = '';
UPDATE keys SET k = k || 'x' WHERE n = 1800;
SELECT length(k) FROM keys WHERE n = 1800;
-- storage and compression of columns
ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
ALTER TABLE t ALTER b SET COMPRESSION pglz;
UPDATE t SET v = repeat('q', 100000) WHERE k = 1;
SELECT length(v) FROM t WHERE k = 1;
VACUUM FULL t;
SELECT count(*), sum(length(v)), sum(length(b)) FROM t;
CREATE TABLE copy AS SELECT * FROM t;
SELECT count(*), sum(length(v)) FROM copy;
