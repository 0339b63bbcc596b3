-- Log pages whose rows are in a run are not written any more.
CREATE EXTENSION pg_buffercache;
CREATE TABLE t (k int PRIMARY KEY, v text) USING loosekv WITH (loosekv.memtable_size = '16MB');
CREATE FUNCTION to_write() RETURNS bigint LANGUAGE sql AS $$
    SELECT count(*) FROM pg_buffercache JOIN pg_database ON reldatabase = oid
    WHERE datname = current_database() AND relfilenode = pg_relation_filenode('t') AND isdirty
$$;
-- How many more that is than the runs have, once nobody looks at the log any more; nothing if it is few.
CREATE FUNCTION beside_runs() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE more bigint;
BEGIN
    FOR i IN 1..10 LOOP
        more := to_write() - (SELECT sum(pages) FROM loosekv.runs('t'));
        EXIT WHEN more < 50;
        INSERT INTO t VALUES (-i, 'so that there is something to flush');
        PERFORM loosekv.flush('t'), pg_sleep(0.1);
    END LOOP;
    RETURN CASE WHEN more >= 50 THEN more END;
END $$;
-- That begins with the first checkpoint after the first flush.
INSERT INTO t VALUES (0, '');
SELECT loosekv.flush('t');
CHECKPOINT;
INSERT INTO t SELECT i, repeat(md5(i::text), 6) FROM generate_series(1, 10000) i;
SELECT to_write() > 200 AS log;
SELECT loosekv.flush('t');
SELECT beside_runs();
-- The same where a checkpoint came meanwhile.
INSERT INTO t SELECT i, repeat(md5(i::text), 6) FROM generate_series(10001, 20000) i;
CHECKPOINT;
INSERT INTO t SELECT i, repeat(md5(i::text), 6) FROM generate_series(20001, 30000) i;
SELECT loosekv.flush('t');
SELECT beside_runs();
SELECT count(*), count(DISTINCT v) FROM t WHERE k > 0;
SELECT * FROM loosekv.check('t');
DROP TABLE t;
DROP FUNCTION beside_runs();
DROP FUNCTION to_write();
DROP EXTENSION pg_buffercache;
