-- What is refused: with SQLSTATE, message and hint; and the session goes on.
CREATE FUNCTION refused(statement text, OUT state text, OUT message text, OUT hint text) LANGUAGE plpgsql AS $function$
BEGIN
    EXECUTE statement;
    message := 'not refused';
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
END $function$;
\pset format unaligned
\pset footer off
\t on
SET client_min_messages = error;
CREATE TABLE t (k int PRIMARY KEY, v int) USING loosekv;
INSERT INTO t VALUES (1, 1), (2, 2);
-- deferrable keys
SELECT * FROM refused($$CREATE TABLE d (k int PRIMARY KEY DEFERRABLE) USING loosekv$$);
SELECT * FROM refused($$CREATE TABLE d (k int, PRIMARY KEY (k) DEFERRABLE INITIALLY DEFERRED) USING loosekv$$);
CREATE TABLE d (k int NOT NULL) USING loosekv;
SELECT * FROM refused($$ALTER TABLE d ADD PRIMARY KEY (k) DEFERRABLE$$);
-- a key from an index that is there
CREATE UNIQUE INDEX d_k ON d (k);
SELECT * FROM refused($$ALTER TABLE d ADD PRIMARY KEY USING INDEX d_k$$);
ALTER TABLE d ADD CONSTRAINT d_u UNIQUE USING INDEX d_k;
-- the key's access method by hand
SELECT * FROM refused($$CREATE INDEX by_hand ON t USING loosekv_key (v)$$);
CREATE UNIQUE INDEX by_hand ON t USING loosekv_key (k);
DROP INDEX by_hand;
CREATE TABLE h (k int PRIMARY KEY) USING heap;
SELECT * FROM refused($$CREATE INDEX by_hand ON h USING loosekv_key (k)$$);
-- keys that have no order in bytes
SELECT * FROM refused($$CREATE TABLE r (k int4range PRIMARY KEY) USING loosekv$$);
SELECT * FROM refused($$CREATE TABLE r (k jsonb PRIMARY KEY) USING loosekv$$);
SELECT * FROM refused($$CREATE TABLE r (k tsvector PRIMARY KEY) USING loosekv$$);
CREATE TYPE two AS (a int, b int);
SELECT * FROM refused($$CREATE TABLE r (k two PRIMARY KEY) USING loosekv$$);
CREATE COLLATION ignoring (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
SELECT * FROM refused($$CREATE TABLE r (k text COLLATE ignoring PRIMARY KEY) USING loosekv$$);
CREATE TABLE r (k int4range) USING loosekv;
SELECT * FROM refused($$ALTER TABLE r ADD PRIMARY KEY (k)$$);
-- a key that is too long
CREATE TABLE long (k text PRIMARY KEY) USING loosekv;
SELECT * FROM refused($$INSERT INTO long SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) i$$);
SELECT count(*) FROM long;
SET client_min_messages = error;
-- no such thing
SELECT * FROM refused($$CREATE TABLE n (k int PRIMARY KEY) USING loosekv WITH (nonsense = 1)$$);
SELECT * FROM refused($$SELECT loosekv.flush('t'::regclass), loosekv.flush('pg_class'::regclass)$$);
SELECT * FROM refused($$SELECT loosekv.runs('pg_class'::regclass)$$);
-- timeouts and cancels leave all as it was
SET statement_timeout = '100ms';
INSERT INTO t SELECT i, i FROM generate_series(10, 100000000) i;
UPDATE t SET v = v + 1 WHERE pg_sleep(0.06) IS NOT NULL;
RESET statement_timeout;
SELECT * FROM t ORDER BY k;
-- the key of a table is not changed while triggers are to come for its rows: of a partition, by ALTER TABLE on its parent
CREATE TABLE parent (k int NOT NULL, v int) PARTITION BY RANGE (k);
CREATE TABLE part PARTITION OF parent (v UNIQUE DEFERRABLE INITIALLY DEFERRED) FOR VALUES FROM (0) TO (100) USING loosekv;
INSERT INTO parent SELECT i, i FROM generate_series(1, 10) i;
BEGIN;
INSERT INTO parent VALUES (20, 3), (21, 30);
ALTER TABLE parent ADD PRIMARY KEY (k);
COMMIT;
CREATE DOMAIN whole AS int;
CREATE TABLE pending (k whole PRIMARY KEY, v int UNIQUE DEFERRABLE INITIALLY DEFERRED) USING loosekv;
INSERT INTO pending SELECT i, i FROM generate_series(1, 10) i;
BEGIN;
INSERT INTO pending VALUES (20, 3);
SET client_min_messages = warning;
DROP DOMAIN whole CASCADE;
COMMIT;
RESET client_min_messages;
SELECT count(*), count(DISTINCT v) FROM pending;
DROP TABLE parent, pending;
DROP DOMAIN whole;
-- a key that goes at commit, when nobody is told any more
BEGIN;
CREATE TEMP TABLE going (x int) ON COMMIT DROP;
CREATE TABLE staying (c going, k int GENERATED ALWAYS AS ((c).x) STORED PRIMARY KEY) USING loosekv;
COMMIT;
SELECT to_regclass('staying') IS NULL;
-- all of it still works
INSERT INTO t VALUES (3, 3);
UPDATE t SET k = 4 WHERE k = 3;
SELECT * FROM t ORDER BY k;
DROP TABLE t, d, h, r, long;
DROP TYPE two;
DROP COLLATION ignoring;
DROP FUNCTION refused;
