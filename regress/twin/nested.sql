-- Statements within statements: of functions and WITH clauses, while another one runs, when it has run, and while it is planned.
\ir shared/settle.sql
-- What is in a WITH clause and is not read runs at the end; around it a row is replaced that was left unread.
CREATE TABLE t (k int PRIMARY KEY, v text);
CREATE FUNCTION updates(i int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE x int;
BEGIN
    WITH w AS (UPDATE t SET v = 'nested' WHERE k = i + 1) SELECT 1 INTO x;
    RETURN 'outer';
END $$;
CREATE FUNCTION upserts(i int) RETURNS text LANGUAGE sql VOLATILE AS $$
    WITH w AS (INSERT INTO t VALUES (i + 1, 'nested') ON CONFLICT (k) DO UPDATE SET v = excluded.v) SELECT 'outer'
$$;
CREATE FUNCTION deletes(i int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE x int;
BEGIN
    WITH w AS (UPDATE t SET v = v || '!' WHERE k = i + 1 AND k > 0), z AS (DELETE FROM t WHERE k = i + 200) SELECT 1 INTO x;
    RETURN 'outer';
END $$;
INSERT INTO t SELECT i, 'old' FROM generate_series(1, 400) i;
ANALYZE t;
SELECT settle();
UPDATE t SET v = updates(k) WHERE k = 1;
UPDATE t SET v = upserts(k) WHERE k IN (3, 5, 7, 9);
INSERT INTO t VALUES (11, 'x') ON CONFLICT (k) DO UPDATE SET v = upserts(t.k);
INSERT INTO t VALUES (13, 'x') ON CONFLICT (k) DO UPDATE SET v = updates(t.k) RETURNING *;
INSERT INTO t SELECT i, 'x' FROM generate_series(21, 39, 2) i ON CONFLICT (k) DO UPDATE SET v = upserts(t.k);
INSERT INTO t SELECT i, updates(i) FROM generate_series(41, 59, 2) i ON CONFLICT (k) DO UPDATE SET v = excluded.v;
INSERT INTO t SELECT i, deletes(i) FROM generate_series(61, 79, 2) i ON CONFLICT (k) DO UPDATE SET v = excluded.v;
DELETE FROM t WHERE k BETWEEN 81 AND 99 AND k % 2 = 1 AND updates(k) = 'outer';
INSERT INTO t SELECT i, updates(i - 1000) FROM generate_series(1101, 1119, 2) i;
SELECT v, count(*), sum(k) FROM t GROUP BY v ORDER BY v;
SELECT * FROM t WHERE k < 15 ORDER BY k;
WITH x AS (INSERT INTO t SELECT i, 'x' FROM generate_series(100, 150) i ON CONFLICT (k) DO UPDATE SET v = excluded.v),
     y AS (DELETE FROM t WHERE k < 20), z AS (UPDATE t SET v = 'z' WHERE k IN (30, 31)) SELECT count(*) FROM t;
SELECT v, count(*), sum(k) FROM t GROUP BY v ORDER BY v;
-- Partitions' keys are arbiters of ON CONFLICT at the end, too.
CREATE TABLE p (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
INSERT INTO p VALUES (1, 'a'), (11, 'b');
WITH x AS (INSERT INTO p VALUES (1, 'new'), (12, 'new') ON CONFLICT (k) DO UPDATE SET v = excluded.v) SELECT 1;
WITH x AS (INSERT INTO p VALUES (1, 'newer'), (12, 'newer'), (13, 'n') ON CONFLICT (k) DO UPDATE SET v = excluded.v RETURNING k)
    SELECT 1 FROM x LIMIT 1;
WITH x AS (INSERT INTO p VALUES (1, 'none'), (14, 'one') ON CONFLICT (k) DO NOTHING) UPDATE p SET v = v || '!' WHERE k = 11;
SELECT * FROM p ORDER BY k;
-- A function that plans and runs a query is asked by the planner, of a statement within one that needs a btree.
CREATE FUNCTION methods(name text) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (SELECT count(*) FROM pg_am WHERE amname = name);
END $$;
CREATE FUNCTION methods_after_an_error(name text) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM 1 / (SELECT count(*) FROM pg_am WHERE amname = 'none');
    RETURN 2;
EXCEPTION WHEN division_by_zero THEN
    RETURN methods(name);
END $$;
CREATE TABLE r (k int PRIMARY KEY, v int) PARTITION BY RANGE (k);
CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (1000);
CREATE FUNCTION counts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.v := (SELECT count(*) FROM r WHERE v < methods('heap')) + (SELECT count(*) FROM r WHERE v < methods_after_an_error('heap'));
    RETURN NEW;
END $$;
CREATE TRIGGER counts BEFORE INSERT ON r FOR EACH ROW EXECUTE FUNCTION counts();
INSERT INTO r SELECT i, 1 FROM generate_series(1, 3) i ON CONFLICT (k) DO UPDATE SET v = excluded.v;
INSERT INTO r SELECT i, 1 FROM generate_series(1, 3) i ON CONFLICT (k) DO UPDATE SET v = excluded.v + 10;
SELECT * FROM r ORDER BY k;
CREATE TABLE s (a int, b int, v int, PRIMARY KEY (a, b));
INSERT INTO s SELECT i, i, 0 FROM generate_series(1, 100) i;
ANALYZE s;
CREATE FUNCTION compares() RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM FROM s WHERE (a, b) > (3, 3) AND (a, b) < (5, 5);
    RETURN 5;
END $$;
CREATE FUNCTION looks() RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT count(*) FROM s WHERE b = compares());
END $$;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
UPDATE s SET v = looks() WHERE (a, b) > (98, 98) AND a <= 99 RETURNING *;
RESET enable_seqscan;
RESET enable_bitmapscan;
-- A key is dropped, and before the statement's end another statement runs within it.
CREATE FUNCTION sets(x anyelement) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL work_mem = '4MB';
    CREATE TEMP TABLE IF NOT EXISTS aside (x int);
    RETURN 'set ' || x;
END $$;
CREATE TABLE u (k int PRIMARY KEY, v int, s text);
INSERT INTO u VALUES (1, 10, 'a'), (2, 20, 'b');
ALTER TABLE u DROP CONSTRAINT u_pkey, ALTER v TYPE text USING sets(v);
SELECT * FROM u ORDER BY k;
ALTER TABLE u ADD PRIMARY KEY (k);
ALTER TABLE u DROP CONSTRAINT u_pkey, ADD COLUMN x text DEFAULT sets(5);
ALTER TABLE u ADD PRIMARY KEY (k);
ALTER TABLE u DROP CONSTRAINT u_pkey, ADD CHECK (sets(v) <> '');
ALTER TABLE u ADD PRIMARY KEY (k);
ALTER TABLE u DROP COLUMN k, ALTER s TYPE text USING sets(s);
SELECT * FROM u ORDER BY v;
CREATE FUNCTION sets_too() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN SET LOCAL work_mem = '4MB'; END $$;
CREATE EVENT TRIGGER sets_too ON table_rewrite EXECUTE FUNCTION sets_too();
CREATE TABLE w (k int PRIMARY KEY, v int);
INSERT INTO w VALUES (1, 10), (2, 20);
ALTER TABLE w DROP CONSTRAINT w_pkey, ALTER v TYPE text USING 'y' || v;
SELECT * FROM w ORDER BY k;
DROP EVENT TRIGGER sets_too;
-- A failed ANALYZE leaves no setting behind.
CREATE FUNCTION fails(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN 1 / (v - 7); END $$;
CREATE TABLE f (k int PRIMARY KEY, v int);
CREATE INDEX ON f (fails(v));
INSERT INTO f VALUES (1, 1);
CREATE OR REPLACE FUNCTION fails(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN 1 / (v - v); END $$;
BEGIN;
SAVEPOINT a;
ANALYZE f;
ROLLBACK TO a;
COMMIT;
SHOW maintenance_io_concurrency;
DO $$ BEGIN ANALYZE f; EXCEPTION WHEN OTHERS THEN RAISE NOTICE '%', sqlerrm; END $$;
SHOW maintenance_io_concurrency;
-- A table that becomes one of heap has a place for large values.
CREATE TABLE large (k int, v text);
ALTER TABLE large ALTER v SET STORAGE EXTERNAL;
INSERT INTO large SELECT i, string_agg(md5(j::text), '') FROM generate_series(1, 3) i, generate_series(1, 700 * i) j GROUP BY i;
ALTER TABLE large SET ACCESS METHOD heap;
INSERT INTO large SELECT 4, string_agg(md5(j::text), '') FROM generate_series(1, 3000) j;
ALTER TABLE large ALTER v SET STATISTICS 50;
SELECT k, length(v), md5(v) FROM large ORDER BY k;
SELECT reltoastrelid <> 0 AS has_toast FROM pg_class WHERE oid = 'large'::regclass;
ALTER TABLE large SET ACCESS METHOD loosekv;
SELECT k, length(v), md5(v) FROM large ORDER BY k;
ALTER TABLE large SET ACCESS METHOD heap;
SELECT k, length(v), md5(v) FROM large ORDER BY k;
-- Who inherits from a published table is not published.
CREATE TABLE parent (k int) USING heap;
CREATE PUBLICATION of_parent FOR TABLE ONLY parent;
CREATE TABLE child () INHERITS (parent);
INSERT INTO child VALUES (1);
SELECT * FROM parent;
DROP PUBLICATION of_parent;
