-- What logical decoding tells of every kind of change: the same of both.
SELECT 'made' FROM pg_create_logical_replication_slot('twin', 'test_decoding');
CREATE FUNCTION told() RETURNS SETOF text LANGUAGE sql AS
$$SELECT data FROM pg_logical_slot_get_changes('twin', NULL, NULL, 'include-xids', '0', 'skip-empty-xacts', '1')$$;
CREATE TABLE t (k int PRIMARY KEY, v text, n numeric DEFAULT 1.50);
INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, NULL);
INSERT INTO t SELECT i, 'v' || i FROM generate_series(10, 14) i;
UPDATE t SET v = 'zwei' WHERE k = 2;
UPDATE t SET v = v || '!' WHERE k >= 10;
UPDATE t SET k = k + 100 WHERE k = 3;
DELETE FROM t WHERE k = 1;
DELETE FROM t WHERE k >= 12;
SELECT * FROM told();
-- ON CONFLICT, MERGE, COPY, several changes of a row in one transaction
INSERT INTO t VALUES (2, 'again'), (20, 'new') ON CONFLICT (k) DO UPDATE SET v = excluded.v;
INSERT INTO t VALUES (2, 'again'), (21, 'new') ON CONFLICT DO NOTHING;
INSERT INTO t SELECT i, 'up', 7 FROM generate_series(20, 24) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
MERGE INTO t USING (VALUES (20), (30)) s (k) ON t.k = s.k
WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (s.k, 'merged');
COPY t (k, v) FROM stdin;
40	a
41	\N
42	c
\.
BEGIN;
INSERT INTO t VALUES (50, 'x');
UPDATE t SET v = 'y' WHERE k = 50;
DELETE FROM t WHERE k = 50;
INSERT INTO t VALUES (50, 'z');
COMMIT;
SELECT * FROM told();
-- subtransactions, and what is rolled back
BEGIN;
INSERT INTO t VALUES (60, 'kept');
SAVEPOINT a;
INSERT INTO t VALUES (61, 'lost');
UPDATE t SET v = 'lost' WHERE k = 60;
ROLLBACK TO a;
SAVEPOINT b;
DELETE FROM t WHERE k = 40;
RELEASE b;
COMMIT;
BEGIN;
INSERT INTO t VALUES (70, 'lost');
ROLLBACK;
INSERT INTO t VALUES (71, 'x'), (2, 'duplicate');
INSERT INTO t SELECT i, 'x' FROM generate_series(80, 90) i UNION ALL SELECT 2, 'duplicate';
DO $$ BEGIN
    FOR i IN 100 .. 104 LOOP
        BEGIN
            INSERT INTO t SELECT i, 'x' UNION ALL SELECT 2, 'duplicate' WHERE i % 2 = 0;
        EXCEPTION WHEN unique_violation THEN NULL;
        END;
    END LOOP;
END $$;
SELECT * FROM told();
-- what identifies a row
CREATE TABLE id (a int NOT NULL, b text NOT NULL, c numeric, PRIMARY KEY (b, a));
CREATE UNIQUE INDEX of_a ON id (a);
INSERT INTO id VALUES (1, 'x', 1), (2, 'y', 2), (3, 'z', 3), (4, 'w', NULL);
UPDATE id SET c = 10 WHERE a = 1;
UPDATE id SET b = 'xx' WHERE a = 1;
DELETE FROM id WHERE a = 1;
ALTER TABLE id REPLICA IDENTITY FULL;
UPDATE id SET c = 20 WHERE a = 2;
UPDATE id SET c = 20 WHERE a = 4;
DELETE FROM id WHERE a = 2;
ALTER TABLE id REPLICA IDENTITY USING INDEX of_a;
UPDATE id SET c = 30, b = 'zz' WHERE a = 3;
UPDATE id SET a = 33 WHERE a = 3;
INSERT INTO id VALUES (5, 'v', 5) ON CONFLICT (b, a) DO UPDATE SET c = excluded.c;
INSERT INTO id VALUES (5, 'v', 55) ON CONFLICT (b, a) DO UPDATE SET c = excluded.c;
DELETE FROM id WHERE a = 33;
ALTER TABLE id REPLICA IDENTITY NOTHING;
UPDATE id SET c = 40 WHERE a = 4;
UPDATE id SET b = 'ww' WHERE a = 4;
DELETE FROM id;
SELECT * FROM told();
-- keys that the bytes of the key do not give back
CREATE TABLE n (k numeric PRIMARY KEY, v int);
INSERT INTO n VALUES (1.0, 1), (2.50, 2);
UPDATE n SET v = 3 WHERE k = 1;
UPDATE n SET k = 1.00 WHERE k = 1;
DELETE FROM n WHERE k = 2.5;
CREATE TABLE f (k float8, c char(5), v int, PRIMARY KEY (k, c));
INSERT INTO f VALUES ('-0', 'a', 1), ('NaN', 'b ', 2), (1e300, 'c', 3);
UPDATE f SET v = 4 WHERE k = 0;
UPDATE f SET c = 'aa' WHERE k = 0;
DELETE FROM f WHERE k = 'NaN';
SELECT * FROM told();
-- large values, columns added and dropped, generated ones, no key at all
CREATE TABLE wide (k int PRIMARY KEY, big text, small text);
ALTER TABLE wide ALTER big SET STORAGE EXTERNAL;
INSERT INTO wide SELECT i, repeat(md5(i::text), 400), 's' FROM generate_series(1, 3) i;
UPDATE wide SET big = repeat('y', 20000) WHERE k = 2;
UPDATE wide SET k = 30, big = 'not large' WHERE k = 3;
DELETE FROM wide WHERE k = 1;
SELECT substr(data, 1, 60), length(data) FROM told() data;
ALTER TABLE t ADD COLUMN added int DEFAULT 9;
ALTER TABLE t DROP COLUMN n;
ALTER TABLE t REPLICA IDENTITY FULL;
UPDATE t SET v = 'after' WHERE k = 2;
INSERT INTO t VALUES (200, 'after');
DELETE FROM t WHERE k = 10;
CREATE TABLE g (k int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED);
INSERT INTO g VALUES (1, 2);
UPDATE g SET v = 5;
CREATE TABLE keyless (a int, b text);
INSERT INTO keyless VALUES (1, 'x'), (2, 'y');
UPDATE keyless SET b = 'z' WHERE a = 1;
DELETE FROM keyless WHERE a = 2;
ALTER TABLE keyless REPLICA IDENTITY FULL;
UPDATE keyless SET b = 'zz' WHERE a = 1;
DELETE FROM keyless;
SELECT * FROM told();
-- partitions, foreign keys, triggers, TRUNCATE, tables made or rewritten by the same transaction, what is not logged
CREATE TABLE p (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
INSERT INTO p VALUES (1, 'a'), (11, 'b'), (2, 'c');
UPDATE p SET k = k + 12 WHERE k = 1;
CREATE TABLE parent (k int PRIMARY KEY);
CREATE TABLE child (k int PRIMARY KEY, of int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
INSERT INTO parent SELECT generate_series(1, 3);
INSERT INTO child SELECT i, i FROM generate_series(1, 3) i;
UPDATE parent SET k = 9 WHERE k = 2;
DELETE FROM parent WHERE k = 1;
TRUNCATE child;
TRUNCATE p, parent CASCADE;
BEGIN;
CREATE TABLE made (k int PRIMARY KEY, v int);
INSERT INTO made SELECT i, i FROM generate_series(1, 3) i;
ALTER TABLE made ALTER v TYPE bigint;
UPDATE made SET v = 0 WHERE k = 2;
COMMIT;
CREATE TABLE asked AS SELECT i AS a FROM generate_series(1, 3) i;
CREATE MATERIALIZED VIEW seen AS SELECT k FROM made ORDER BY k;
REFRESH MATERIALIZED VIEW seen;
CREATE UNLOGGED TABLE unlogged (k int PRIMARY KEY);
INSERT INTO unlogged VALUES (1);
CREATE TEMP TABLE passing (k int PRIMARY KEY);
INSERT INTO passing VALUES (1);
VACUUM FULL made;
ALTER TABLE made ALTER v TYPE int;
UPDATE made SET v = 1 WHERE k = 1;
SELECT * FROM told();
-- rewrites, for who wants them
CREATE TABLE again (k int PRIMARY KEY, v int);
INSERT INTO again VALUES (1, 1), (2, 2);
ALTER TABLE again ALTER v TYPE bigint;
SELECT regexp_replace(data, 'pg_temp_\d+', 'pg_temp') FROM pg_logical_slot_peek_changes('twin', NULL, NULL, 'include-xids', '0',
    'include-rewrites', '1');
SELECT * FROM told();
-- a transaction of many rows, which does not stay in memory, and which is told of before it commits
SET logical_decoding_work_mem = '64kB';
SELECT 'made' FROM pg_create_logical_replication_slot('streamed', 'test_decoding');
BEGIN;
INSERT INTO t (k, v) SELECT i, repeat('x', 100) FROM generate_series(1001, 4000) i;
UPDATE t SET v = 'y' WHERE k > 3990;
DELETE FROM t WHERE k > 1010 AND k < 3990;
COMMIT;
SELECT substr(data, 1, 20), count(*) FROM told() data GROUP BY 1 ORDER BY 1;
SELECT regexp_replace(data, '\d+', 'N', 'g'), count(*) FROM pg_logical_slot_get_changes('streamed', NULL, NULL, 'include-xids', '0',
    'stream-changes', '1') GROUP BY 1 ORDER BY 1;
SELECT pg_drop_replication_slot('streamed');
-- two-phase commit
SELECT 'made' FROM pg_create_logical_replication_slot('prepared', 'test_decoding', false, true);
BEGIN;
INSERT INTO made VALUES (10, 10);
DELETE FROM made WHERE k = 3;
PREPARE TRANSACTION 'twin';
SELECT regexp_replace(data, ', txid.*', '') FROM pg_logical_slot_get_changes('prepared', NULL, NULL, 'include-xids', '0');
COMMIT PREPARED 'twin';
SELECT regexp_replace(data, ', txid.*', '') FROM pg_logical_slot_get_changes('prepared', NULL, NULL, 'include-xids', '0');
SELECT * FROM told();
SELECT pg_drop_replication_slot('prepared');
-- changes that come from elsewhere
SELECT pg_replication_origin_create('elsewhere') > 0;
SELECT pg_replication_origin_session_setup('elsewhere');
INSERT INTO made VALUES (20, 20);
SELECT pg_replication_origin_session_reset();
INSERT INTO made VALUES (21, 21);
SELECT data FROM pg_logical_slot_get_changes('twin', NULL, NULL, 'include-xids', '0', 'skip-empty-xacts', '1', 'only-local', '1');
SELECT pg_replication_origin_drop('elsewhere');
SELECT pg_drop_replication_slot('twin');
