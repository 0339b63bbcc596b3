-- A primary key that came with its table from heap is a btree, and stays one as long as ALTER TABLE goes on with its file.
CREATE FUNCTION key_method(t regclass) RETURNS name LANGUAGE sql AS $$
    SELECT amname FROM pg_index JOIN pg_class ON oid = indexrelid JOIN pg_am ON pg_am.oid = relam WHERE indrelid = t AND indisprimary $$;
CREATE TABLE t (v int, k varchar(5) COLLATE "C" PRIMARY KEY, x int) USING heap;
INSERT INTO t VALUES (0, 'a', 0), (1, 'B', 1), (2, 'b', 2);
ALTER TABLE t SET ACCESS METHOD loosekv;
ALTER TABLE t ALTER k TYPE varchar(9) COLLATE "C";
SELECT key_method('t');
SELECT * FROM t ORDER BY k;
SELECT count(*) FROM t WHERE k = 'a';
INSERT INTO t VALUES (9, 'a', 9);
INSERT INTO t VALUES (9, 'a', 9) ON CONFLICT (k) DO UPDATE SET x = EXCLUDED.x RETURNING *;
CREATE TABLE i (k int PRIMARY KEY, v int) USING heap;
INSERT INTO i VALUES (2, 2), (1, 1);
ALTER TABLE i SET ACCESS METHOD loosekv;
ALTER TABLE i ALTER k TYPE int;
SELECT * FROM i ORDER BY k;
CREATE TABLE c (k int, v varchar(5), PRIMARY KEY (k) INCLUDE (v)) USING heap;
INSERT INTO c VALUES (2, 'two'), (1, 'one');
ALTER TABLE c SET ACCESS METHOD loosekv;
BEGIN;
ALTER TABLE c ALTER v TYPE varchar(9);
SELECT key_method('c'), array_agg(c) FROM c;
ROLLBACK;
SELECT key_method('c'), array_agg(c) FROM c;
ALTER TABLE c ALTER v TYPE varchar(9);
SELECT key_method('c'), array_agg(c) FROM c;
-- One that is built anew is a key of ours, as one that is added.
ALTER TABLE i ALTER k TYPE bigint;
SELECT key_method('i'), array_agg(i ORDER BY k) FROM i;
ALTER TABLE i ALTER k TYPE bigint;
SELECT key_method('i'), array_agg(i ORDER BY k) FROM i;
ALTER TABLE t DROP CONSTRAINT t_pkey;
ALTER TABLE t ADD PRIMARY KEY (k);
ALTER TABLE t ALTER k TYPE varchar(12) COLLATE "C";
SELECT key_method('t'), array_agg(t ORDER BY k) FROM t;
SELECT * FROM loosekv.check('t') UNION ALL SELECT * FROM loosekv.check('i') UNION ALL SELECT * FROM loosekv.check('c');
DROP TABLE t, i, c;
DROP FUNCTION key_method;
