-- INSERT ... ON CONFLICT DO UPDATE that replaces rows unread: rows in a run, nothing wanted of them but their key.
\ir shared/settle.sql
CREATE TABLE t (k int PRIMARY KEY, v text, n int DEFAULT 7);
INSERT INTO t SELECT i, 'old ' || i, i FROM generate_series(1, 40) i;
SELECT settle();
INSERT INTO t VALUES (1, 'new', 1) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n RETURNING *;
INSERT INTO t VALUES (1, 'newer', 1) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, 'many', i FROM generate_series(2, 5) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n + t.k;
-- One column is kept; one is asked for; the row as a whole is; a condition; a default.
INSERT INTO t VALUES (6, 'kept n', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v RETURNING *;
INSERT INTO t VALUES (7, 'and', 0) ON CONFLICT (k) DO UPDATE SET v = t.v || excluded.v, n = excluded.n RETURNING *;
INSERT INTO t VALUES (8, 'whole', 0) ON CONFLICT (k) DO UPDATE SET v = t::text, n = excluded.n RETURNING *;
INSERT INTO t VALUES (9, 'where', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n WHERE t.n > 100 RETURNING *;
INSERT INTO t VALUES (10, 'default', 0) ON CONFLICT (k) DO UPDATE SET v = DEFAULT, n = DEFAULT RETURNING *;
INSERT INTO t VALUES (11, 'system', 0) ON CONFLICT (k) DO UPDATE SET v = (t.xmin::text <> '0')::text, n = (t.tableoid = 't'::regclass)::int RETURNING *;
INSERT INTO t VALUES (12, 'sub', 0) ON CONFLICT (k) DO UPDATE SET (v, n) = (SELECT 'of ' || v, n FROM t AS o WHERE o.k = t.k) RETURNING *;
INSERT INTO t VALUES (13, 'other key', 0) ON CONFLICT (k) DO UPDATE SET k = 113, v = excluded.v, n = excluded.n RETURNING *;
INSERT INTO t VALUES (14, 'same', 0) ON CONFLICT (k) DO UPDATE SET k = excluded.k, v = excluded.v, n = excluded.n RETURNING *;
INSERT INTO t VALUES (15, 'twice', 0), (15, 'twice', 1) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t VALUES (15, 'xmax', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n RETURNING xmax <> 0 AS locked, *;
UPDATE t SET v = 'updated', n = 0 WHERE k = 30 RETURNING *;
UPDATE t SET v = 'updated', n = k + 1 WHERE k IN (31, 32, 3000) RETURNING *;
UPDATE t SET v = 'again', n = 1 WHERE k = 30 RETURNING xmax <> 0 AS locked, *;
UPDATE t SET v = 'kept' WHERE k = 33 RETURNING *;
UPDATE t SET v = v || ' and', n = 0 WHERE k = 34 RETURNING *;
UPDATE t SET v = t::text, n = 0 WHERE k = 35 RETURNING *;
UPDATE t SET v = 'where', n = 0 WHERE k = 36 AND n > 100 RETURNING *;
UPDATE t SET v = (SELECT v FROM t o WHERE o.k = 38), n = 0 WHERE k = 37 RETURNING *;
UPDATE t SET v = o.v, n = 0 FROM t o WHERE t.k = 38 AND o.k = 39 RETURNING *;
UPDATE t SET k = 140, v = 'other key', n = 0 WHERE k = 40 RETURNING *;
UPDATE t SET v = 'none', n = 0 WHERE k = 4000 RETURNING *;
UPDATE t SET v = 'range', n = 0 WHERE k BETWEEN 19 AND 20 RETURNING *;
SELECT * FROM t WHERE k < 21 OR k >= 30 ORDER BY k;
-- What others, and savepoints, make of it.
SELECT settle();
BEGIN;
SAVEPOINT s;
INSERT INTO t VALUES (16, 'taken back', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
ROLLBACK TO s;
SELECT * FROM t WHERE k = 16;
INSERT INTO t VALUES (16, 'again', 1) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
SAVEPOINT s;
INSERT INTO t VALUES (16, 'once more', 2) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
RELEASE s;
DELETE FROM t WHERE k = 16 RETURNING *;
INSERT INTO t VALUES (16, 'inserted', 3) ON CONFLICT (k) DO UPDATE SET v = 'not this', n = 0;
SELECT * FROM t WHERE k = 16;
UPDATE t SET k = 216 WHERE k = 16;
INSERT INTO t VALUES (16, 'in its place', 4) ON CONFLICT (k) DO UPDATE SET v = 'not this', n = 0;
COMMIT;
SELECT * FROM t WHERE k IN (16, 216) ORDER BY k;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM t WHERE k = 17 FOR UPDATE;
FETCH c;
INSERT INTO t VALUES (17, 'under a cursor', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
UPDATE t SET n = 5 WHERE CURRENT OF c;
SELECT * FROM t WHERE k = 17;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM t;
UPDATE t SET v = 'serializable', n = 0 WHERE k = 19 RETURNING *;
INSERT INTO t VALUES (18, 'serializable', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n RETURNING *;
COMMIT;
-- Functions in between that change the row, or many others, or fail.
SELECT settle();
CREATE FUNCTION meddle(key int, what text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF what = 'same' THEN
        INSERT INTO t VALUES (key, 'by the function', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
    ELSIF what = 'update' THEN
        UPDATE t SET n = n + 1 WHERE k = key;
    ELSIF what = 'delete' THEN
        DELETE FROM t WHERE k = key;
    ELSIF what = 'others' THEN
        FOR i IN 30..40 LOOP
            INSERT INTO t VALUES (i, 'by the function', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
        END LOOP;
    ELSIF what = 'settle' THEN
        PERFORM settle();
    ELSIF what = 'fail' THEN
        BEGIN
            INSERT INTO t VALUES (29, 'in vain', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = 1 / excluded.n;
        EXCEPTION WHEN division_by_zero THEN
            NULL;
        END;
    END IF;
    RETURN what;
END $$;
UPDATE t SET v = meddle(30, 'same'), n = 0 WHERE k = 30;
UPDATE t SET v = meddle(31, 'update'), n = 0 WHERE k = 31;
UPDATE t SET v = meddle(32, 'delete'), n = 0 WHERE k = 32;
UPDATE t SET v = meddle(33, 'others'), n = 0 WHERE k = 29 RETURNING *;
UPDATE t SET v = meddle(33, 'fail'), n = 0 WHERE k IN (27, 28) RETURNING *;
UPDATE t SET v = meddle(33, 'settle'), n = 0 WHERE k IN (27, 28) RETURNING *;
INSERT INTO t VALUES (20, 'x', 0) ON CONFLICT (k) DO UPDATE SET v = meddle(20, 'same'), n = excluded.n;
INSERT INTO t VALUES (21, 'x', 0) ON CONFLICT (k) DO UPDATE SET v = meddle(21, 'update'), n = excluded.n;
INSERT INTO t VALUES (22, 'x', 0) ON CONFLICT (k) DO UPDATE SET v = meddle(22, 'delete'), n = excluded.n;
INSERT INTO t VALUES (23, 'x', 0) ON CONFLICT (k) DO UPDATE SET v = meddle(23, 'others'), n = excluded.n;
INSERT INTO t VALUES (24, 'x', 0), (25, 'x', 0) ON CONFLICT (k) DO UPDATE SET v = meddle(24, 'fail'), n = excluded.n;
INSERT INTO t VALUES (26, 'x', 0), (27, 'x', 0) ON CONFLICT (k) DO UPDATE SET v = meddle(24, 'settle'), n = excluded.n;
WITH x AS (INSERT INTO t VALUES (27, '!', 0) ON CONFLICT (k) DO UPDATE SET k = 327, v = t.v || excluded.v RETURNING *)
INSERT INTO t SELECT 28, 'top', k FROM x ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
WITH x AS (INSERT INTO t VALUES (28, 'below', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n RETURNING *)
SELECT * FROM x;
SELECT * FROM t WHERE k >= 20 ORDER BY k;
-- Keys of several columns, in another order, behind other columns; columns dropped, added and generated; texts.
CREATE TABLE m (a text, v int, b int, PRIMARY KEY (b, a));
INSERT INTO m SELECT 'a' || i, i, i % 3 FROM generate_series(1, 9) i;
SELECT settle('m');
INSERT INTO m VALUES ('a1', 100, 1) ON CONFLICT (b, a) DO UPDATE SET v = excluded.v RETURNING *;
INSERT INTO m (a, b, v) VALUES ('a2', 2, 200), ('a10', 1, 1000) ON CONFLICT (a, b) DO UPDATE SET v = excluded.v RETURNING *;
ALTER TABLE m ADD COLUMN w text DEFAULT 'w';
INSERT INTO m VALUES ('a4', 400, 1, 'four') ON CONFLICT (b, a) DO UPDATE SET v = excluded.v RETURNING *;
INSERT INTO m VALUES ('a5', 500, 2, 'five') ON CONFLICT (b, a) DO UPDATE SET v = excluded.v, w = excluded.w RETURNING *;
ALTER TABLE m DROP COLUMN v;
INSERT INTO m VALUES ('a6', 0, 'six') ON CONFLICT (b, a) DO UPDATE SET w = excluded.w RETURNING *;
ALTER TABLE m ADD COLUMN g int GENERATED ALWAYS AS (b * 2) STORED;
SELECT settle('m');
INSERT INTO m VALUES ('a7', 1, 'seven') ON CONFLICT (b, a) DO UPDATE SET w = excluded.w RETURNING *;
UPDATE m SET w = 'eight' WHERE (b, a) = (2, 'a8') RETURNING *;
UPDATE m SET w = 'many' WHERE b = 0 AND a = ANY (ARRAY['a3', 'a9', 'a0']) RETURNING *;
UPDATE m SET w = 'prefix' WHERE b = 0 RETURNING *;
SELECT * FROM m ORDER BY b, a;
CREATE TABLE l (k text COLLATE "C" PRIMARY KEY, v text);
INSERT INTO l VALUES ('a', 'old'), ('b', repeat('old', 10000)), ('c', 'old');
SELECT settle('l');
INSERT INTO l VALUES ('a', repeat('new', 10000)), ('b', 'new') ON CONFLICT (k) DO UPDATE SET v = excluded.v;
UPDATE l SET v = repeat('updated', 10000) WHERE k = 'c';
SELECT k, length(v), left(v, 5) FROM l ORDER BY k;
-- Triggers, indexes and views see the old row.
CREATE TABLE h (k int PRIMARY KEY, v text);
INSERT INTO h SELECT i, 'old' FROM generate_series(1, 9) i;
SELECT settle('h');
CREATE VIEW hv AS SELECT * FROM h WHERE v <> 'hidden' WITH CHECK OPTION;
INSERT INTO hv VALUES (1, 'view') ON CONFLICT (k) DO UPDATE SET v = excluded.v RETURNING *;
INSERT INTO hv VALUES (2, 'view') ON CONFLICT (k) DO UPDATE SET v = 'hidden' RETURNING *;
CREATE INDEX ON h (v);
INSERT INTO h VALUES (3, 'index') ON CONFLICT (k) DO UPDATE SET v = excluded.v;
SELECT * FROM h WHERE v = 'index';
CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE '% becomes %', OLD, NEW;
    RETURN NEW;
END $$;
CREATE TRIGGER seen AFTER UPDATE ON h FOR EACH ROW EXECUTE FUNCTION seen();
INSERT INTO h VALUES (4, 'trigger') ON CONFLICT (k) DO UPDATE SET v = excluded.v;
UPDATE h SET v = 'trigger' WHERE k = 5;
SELECT * FROM h ORDER BY k;
-- Partitions.
CREATE TABLE p (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
INSERT INTO p SELECT i, 'old' FROM generate_series(1, 19) i;
SELECT settle('p1'), settle('p2');
UPDATE p SET v = 'new' WHERE k = 5 RETURNING tableoid::regclass, *;
UPDATE p1 SET v = 'new' WHERE k = 6 RETURNING tableoid::regclass, *;
UPDATE p SET v = 'new' WHERE k IN (7, 17) RETURNING tableoid::regclass, *;
INSERT INTO p VALUES (8, 'new'), (18, 'new') ON CONFLICT (k) DO UPDATE SET v = excluded.v RETURNING tableoid::regclass, *;
UPDATE p SET v = 'new', k = 11 WHERE k = 9 RETURNING tableoid::regclass, *;
UPDATE p SET v = 'new', k = 29 WHERE k = 9 RETURNING tableoid::regclass, *;
SELECT * FROM p WHERE v = 'new' ORDER BY k;
-- a key that is the partition's alone does not keep a row in it
CREATE TABLE q (k int, region int, v text) PARTITION BY LIST (region);
CREATE TABLE q1 PARTITION OF q (PRIMARY KEY (k)) FOR VALUES IN (1);
INSERT INTO q SELECT i, 1, 'old' FROM generate_series(1, 1000) i;
ANALYZE q;
SELECT settle('q1');
SET enable_seqscan = off; SET enable_bitmapscan = off;
UPDATE q SET region = 2, v = 'new' WHERE k = 5;
UPDATE q SET region = 1, v = 'new' WHERE k = 6;
UPDATE q1 SET region = 2, v = 'new' WHERE k = 7;
CREATE TABLE q2 PARTITION OF q DEFAULT;
UPDATE q SET region = 2, v = 'new' WHERE k = 5;
RESET enable_seqscan; RESET enable_bitmapscan;
SELECT tableoid::regclass, * FROM q WHERE v = 'new' ORDER BY k;
SELECT count(*) FROM q;
