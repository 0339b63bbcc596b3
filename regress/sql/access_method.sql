-- SET ACCESS METHOD: the primary key goes along, and is an index of ours where the table is ours, a btree where it is not.
\pset format unaligned
\pset footer off
SET client_min_messages = warning;
CREATE FUNCTION methods(t regclass) RETURNS text LANGUAGE sql AS $$
    SELECT (SELECT amname FROM pg_class JOIN pg_am ON pg_am.oid = relam WHERE pg_class.oid = t) || ': ' ||
        string_agg(relname || ' ' || amname || CASE WHEN indisvalid THEN '' ELSE ' not valid' END, ', ' ORDER BY relname)
    FROM pg_index JOIN pg_class ON oid = indexrelid JOIN pg_am ON pg_am.oid = relam WHERE indrelid = t $$;
CREATE FUNCTION refused(statement text, OUT state text, OUT message text, OUT hint text) LANGUAGE plpgsql AS $function$
BEGIN
    EXECUTE statement;
    message := 'not refused';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
END $function$;

-- A table that another one refers to, with other indexes and columns that the key gives back, goes there and back.
CREATE TABLE t (v int NOT NULL, k varchar(5) COLLATE "C", x int, PRIMARY KEY (k) INCLUDE (x) WITH (fillfactor = 70)) USING heap;
CREATE UNIQUE INDEX t_v ON t (v);
CREATE INDEX t_x ON t ((x + 1)) WHERE x > 0;
COMMENT ON INDEX t_pkey IS 'the key';
ALTER TABLE t CLUSTER ON t_pkey, REPLICA IDENTITY USING INDEX t_v;
CREATE TABLE refers (id int PRIMARY KEY, k varchar(5) COLLATE "C" REFERENCES t ON UPDATE CASCADE) USING heap;
INSERT INTO t SELECT 100 - i, chr(96 + i), i FROM generate_series(1, 26) i;
DELETE FROM t WHERE v % 5 = 0;
INSERT INTO refers VALUES (1, 'a'), (2, 'b');
CREATE FUNCTION first_rows() RETURNS SETOF t LANGUAGE sql AS $$ SELECT * FROM t ORDER BY k LIMIT 3 $$;
ALTER TABLE t SET ACCESS METHOD loosekv;
SELECT methods('t'), obj_description('t_pkey'::regclass);
SELECT * FROM first_rows();
EXPLAIN (COSTS OFF) SELECT * FROM t ORDER BY k LIMIT 3;
SELECT count(*), sum(x) FROM t;
SELECT * FROM refused($$INSERT INTO t VALUES (0, 'a', 0)$$);
SELECT * FROM refused($$INSERT INTO refers VALUES (3, 'z1')$$);
INSERT INTO t VALUES (1000, 'a', 9) ON CONFLICT (k) DO UPDATE SET x = EXCLUDED.x RETURNING *;
UPDATE t SET k = 'B2' WHERE k = 'b';
SELECT * FROM refers ORDER BY id;
SELECT * FROM loosekv.check('t');
ALTER TABLE t ALTER k TYPE varchar(9) COLLATE "C";
SELECT methods('t');
SELECT * FROM first_rows();
ALTER TABLE t SET ACCESS METHOD heap;
SELECT methods('t'), obj_description('t_pkey'::regclass), (SELECT reloptions FROM pg_class WHERE relname = 't_pkey');
SELECT * FROM first_rows();
SELECT * FROM refused($$INSERT INTO t VALUES (0, 'a', 0)$$);
SELECT * FROM refused($$DELETE FROM t WHERE k = 'B2'$$);
SET enable_seqscan = off;
EXPLAIN (COSTS OFF) SELECT * FROM t WHERE k = 'c';
SELECT * FROM t WHERE k = 'c';
RESET enable_seqscan;
ALTER TABLE t SET ACCESS METHOD loosekv;
SELECT methods('t'), array_agg(k) FROM t WHERE v > 90;
SELECT * FROM loosekv.check('t');

-- It is undone with the transaction, or the part of it.
BEGIN;
ALTER TABLE t SET ACCESS METHOD heap;
SAVEPOINT s;
ALTER TABLE t SET ACCESS METHOD loosekv;
INSERT INTO t VALUES (2000, '1', 1);
SELECT methods('t'), count(*) FROM t;
ROLLBACK TO s;
INSERT INTO t VALUES (2001, '2', 1);
SELECT methods('t'), count(*) FROM t;
SELECT * FROM first_rows();
ROLLBACK;
SELECT methods('t'), count(*) FROM t;
SELECT * FROM first_rows();
BEGIN;
SAVEPOINT s;
ALTER TABLE refers SET ACCESS METHOD loosekv;
INSERT INTO refers VALUES (4, 'd');
ROLLBACK TO s;
INSERT INTO refers VALUES (5, 'd');
ALTER TABLE refers SET ACCESS METHOD loosekv;
INSERT INTO refers VALUES (4, 'd');
COMMIT;
SELECT methods('refers'), array_agg(refers) FROM refers;
SELECT * FROM loosekv.check('refers');
ALTER TABLE refers SET ACCESS METHOD heap, SET UNLOGGED;
SELECT methods('refers'), array_agg(refers ORDER BY id) FROM refers;

-- With other commands in the same statement.
CREATE TABLE c (k int, v text) USING heap;
INSERT INTO c SELECT i % 100 + i / 100 * 1000, repeat('x', i * 10) FROM generate_series(1, 1000) i;
ALTER TABLE c ADD PRIMARY KEY (k), SET ACCESS METHOD loosekv, ADD COLUMN w int DEFAULT 7;
SELECT methods('c'), count(*), sum(k), sum(length(v)), sum(w) FROM c;
ALTER TABLE c SET ACCESS METHOD heap, ALTER k TYPE bigint, DROP COLUMN w;
SELECT methods('c'), count(*), sum(k), sum(length(v)) FROM c;
ALTER TABLE c ALTER k TYPE numeric USING k / 2.0, SET ACCESS METHOD loosekv;
SELECT methods('c'), count(*), sum(k), sum(length(v)) FROM c;
SELECT * FROM refused($$ALTER TABLE c ALTER k TYPE int USING round(k / 2), SET ACCESS METHOD heap$$);
ALTER TABLE c SET ACCESS METHOD heap;
SELECT * FROM refused($$ALTER TABLE c ALTER k TYPE int USING round(k / 2), SET ACCESS METHOD loosekv$$);
SELECT methods('c'), count(*), sum(k), sum(length(v)) FROM c;
ALTER TABLE c DROP CONSTRAINT c_pkey, SET ACCESS METHOD loosekv;
SELECT methods('c'), count(*), sum(k), sum(length(v)) FROM c;
ALTER TABLE c ADD PRIMARY KEY (k);
ALTER TABLE c DROP CONSTRAINT c_pkey, SET ACCESS METHOD heap;
SELECT methods('c'), count(*), sum(k), sum(length(v)) FROM c;
ALTER TABLE c ALTER v TYPE text USING md5(v), ADD PRIMARY KEY (k, v), SET ACCESS METHOD loosekv, SET LOGGED;
SELECT methods('c'), count(*), sum(k), sum(length(v)) FROM c;
SELECT * FROM loosekv.check('c');

-- The catalog knows how many rows there are.
CREATE FUNCTION rows_known(OUT relation name, OUT tuples real) RETURNS SETOF record LANGUAGE sql AS $$
    SELECT relname, reltuples FROM pg_class WHERE relname IN ('c', 'c_pkey') ORDER BY 1 $$;
SELECT * FROM rows_known();
ALTER TABLE c SET ACCESS METHOD heap;
SELECT * FROM rows_known();
ALTER TABLE c SET ACCESS METHOD loosekv;
SELECT * FROM rows_known();
ALTER TABLE c ALTER v TYPE varchar(40);
SELECT * FROM rows_known();
ALTER TABLE c ALTER v TYPE varchar(30) USING left(v, 30);
SELECT * FROM rows_known();

-- Partitions, whose keys are part of the parent's.
CREATE TABLE p (k int PRIMARY KEY, v int) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10) USING heap;
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) USING loosekv;
INSERT INTO p SELECT i, i FROM generate_series(0, 19) i;
ALTER TABLE p1 SET ACCESS METHOD loosekv;
ALTER TABLE p2 SET ACCESS METHOD heap;
SELECT methods('p1'), methods('p2'), inhparent::regclass FROM pg_inherits WHERE inhrelid = 'p1_pkey'::regclass;
INSERT INTO p VALUES (3, 0), (13, 0) ON CONFLICT (k) DO UPDATE SET v = 100 RETURNING *;
UPDATE p SET k = k + 10 WHERE k = 5 AND NOT EXISTS (SELECT FROM p WHERE k = 25);
DELETE FROM p WHERE k = 15;
UPDATE p SET k = k + 10 WHERE k = 5;
SELECT tableoid::regclass, count(*), sum(v) FROM p GROUP BY 1 ORDER BY 1;

-- Keys that cannot be ours.
CREATE TABLE n (k int4range PRIMARY KEY) USING heap;
SELECT * FROM refused($$ALTER TABLE n SET ACCESS METHOD loosekv$$);
CREATE TABLE d (k int PRIMARY KEY DEFERRABLE) USING heap;
INSERT INTO d VALUES (1);
SELECT * FROM refused($$ALTER TABLE d SET ACCESS METHOD loosekv$$);
SELECT methods('n'), methods('d'), count(*) FROM d;
ALTER TABLE d DROP CONSTRAINT d_pkey, ADD UNIQUE (k) DEFERRABLE, SET ACCESS METHOD loosekv;
SELECT methods('d'), count(*) FROM d;
CREATE TABLE long (k text PRIMARY KEY) USING heap;
ALTER TABLE long ALTER k SET STORAGE plain;
INSERT INTO long VALUES (repeat('long', 500));
SELECT * FROM refused($$ALTER TABLE long SET ACCESS METHOD loosekv$$);
DELETE FROM long;
ALTER TABLE long SET ACCESS METHOD loosekv;
SELECT methods('long'), count(*) FROM long;

-- Temporary, unlogged and empty tables, and one of which a cursor is open.
CREATE TEMP TABLE passing (k int PRIMARY KEY, v int) USING heap;
INSERT INTO passing VALUES (2, 2), (1, 1);
ALTER TABLE passing SET ACCESS METHOD loosekv;
SELECT methods('passing'), array_agg(passing) FROM passing;
CREATE UNLOGGED TABLE unlogged (k int PRIMARY KEY, v int) USING heap;
ALTER TABLE unlogged SET ACCESS METHOD loosekv;
INSERT INTO unlogged VALUES (2, 2), (1, 1);
SELECT methods('unlogged'), array_agg(unlogged) FROM unlogged;
BEGIN;
DECLARE open CURSOR FOR SELECT * FROM unlogged;
FETCH open;
SAVEPOINT s;
ALTER TABLE unlogged SET ACCESS METHOD heap;
ROLLBACK TO s;
FETCH open;
COMMIT;

-- A table with the name that a copy would have is none.
SELECT format('pg_temp_%s', 'unlogged'::regclass::oid) AS copy \gset
CREATE TABLE :copy (k text, v text) USING loosekv;
BEGIN;
LOCK TABLE unlogged;
INSERT INTO :copy VALUES ('before', '0');
TRUNCATE :copy;
INSERT INTO :copy VALUES ('one', '1'), ('one', '2'), (NULL, '3');
SELECT * FROM :copy;
TRUNCATE :copy;
INSERT INTO :copy VALUES ('one', '1'), ('one', '2');
ROLLBACK;
SELECT count(*) FROM :copy;
BEGIN;
LOCK TABLE unlogged;
ALTER TABLE :copy ALTER v TYPE int USING v::int, SET UNLOGGED;
INSERT INTO :copy VALUES ('one', 1), ('one', 2);
ALTER TABLE :copy ADD PRIMARY KEY (v);
SELECT * FROM :copy WHERE v = 2;
COMMIT;
DROP TABLE :copy;

-- Twice in one transaction, by prepared statements and functions that were planned before.
PREPARE by_key(int) AS SELECT * FROM unlogged WHERE k = $1;
EXECUTE by_key(1);
ALTER TABLE unlogged SET ACCESS METHOD heap;
EXECUTE by_key(1);
DO $$
BEGIN
    ALTER TABLE unlogged SET ACCESS METHOD loosekv;
    INSERT INTO unlogged VALUES (3, 3);
    ALTER TABLE unlogged SET ACCESS METHOD heap;
    INSERT INTO unlogged VALUES (4, 4);
    ALTER TABLE unlogged SET ACCESS METHOD loosekv;
END $$;
EXECUTE by_key(3);
SELECT methods('unlogged'), array_agg(unlogged) FROM unlogged;
SELECT * FROM loosekv.check('unlogged');
DROP TABLE t, refers, c, p, n, d, long, passing, unlogged CASCADE;
DROP FUNCTION methods, refused, rows_known;
