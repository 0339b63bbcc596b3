-- Foreign keys, triggers, constraints, generated columns, joins, MERGE.
CREATE TABLE par (id int PRIMARY KEY, n text);
INSERT INTO par SELECT i, i FROM generate_series(1, 10) i;
CREATE TABLE chi (id int PRIMARY KEY, p int REFERENCES par ON DELETE CASCADE ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE chih (id int PRIMARY KEY, p int REFERENCES par) USING heap;
INSERT INTO chi VALUES (1, 1), (2, 2);
INSERT INTO chih VALUES (1, 3);
INSERT INTO chih VALUES (2, 99);
BEGIN;
INSERT INTO chi VALUES (3, 100);
INSERT INTO par VALUES (100, 'late');
COMMIT;
BEGIN;
INSERT INTO chi VALUES (4, 101);
COMMIT;
DELETE FROM par WHERE id = 3;
DELETE FROM par WHERE id = 1;
SELECT * FROM chi ORDER BY id;
UPDATE par SET id = 20 WHERE id = 2;
SELECT * FROM chi ORDER BY id;
UPDATE par SET n = 'same key' WHERE id = 20;
-- triggers
CREATE FUNCTION tg() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE NOTICE '% % old=% new=%', tg_when, tg_op, old, new; RETURN coalesce(new, old); END $$;
CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON par FOR EACH ROW EXECUTE FUNCTION tg();
CREATE TRIGGER b BEFORE INSERT OR UPDATE OR DELETE ON par FOR EACH ROW EXECUTE FUNCTION tg();
CREATE CONSTRAINT TRIGGER ct AFTER UPDATE ON par DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tg();
BEGIN;
INSERT INTO par VALUES (50, 'x');
UPDATE par SET n = 'y' WHERE id = 50;
UPDATE par SET n = 'z' WHERE id = 50;
DELETE FROM par WHERE id = 50;
COMMIT;
DROP TRIGGER a ON par;
DROP TRIGGER b ON par;
DROP TRIGGER ct ON par;
CREATE FUNCTION tgs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE NOTICE 'transition %', (SELECT array_agg(o.n || '>' || n.n ORDER BY n.n) FROM nt n JOIN ot o USING (id)); RETURN NULL; END $$;
CREATE TRIGGER tt AFTER UPDATE ON par REFERENCING NEW TABLE AS nt OLD TABLE AS ot FOR EACH STATEMENT EXECUTE FUNCTION tgs();
UPDATE par SET n = n || '!' WHERE id < 7;
DROP TRIGGER tt ON par;
-- joins in updates and deletes
UPDATE par a SET n = a.n || b.n FROM par b WHERE a.id = b.id + 1 AND a.id > 7 RETURNING a.id, a.n;
DELETE FROM par USING chi WHERE par.id = chi.p + 1000;
UPDATE par SET id = id + 1000;
SELECT count(*), min(id) FROM par;
-- MERGE
MERGE INTO par USING (VALUES (1004, 'm4'), (5555, 'new')) s (id, n) ON par.id = s.id
    WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.n);
SELECT * FROM par WHERE n IN ('m4', 'new') ORDER BY id;
MERGE INTO par USING (VALUES (1004), (5555), (6666)) s (id) ON par.id = s.id
    WHEN MATCHED AND par.id > 5000 THEN DELETE WHEN MATCHED THEN DO NOTHING WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'merged');
SELECT * FROM par WHERE n IN ('m4', 'new', 'merged') ORDER BY id;
MERGE INTO par USING (VALUES (6666), (6666)) s (id) ON par.id = s.id WHEN MATCHED THEN UPDATE SET n = 'twice';
-- constraints and generated columns
CREATE TABLE g (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED, c int CHECK (c > 0), d serial, e int NOT NULL DEFAULT 5);
INSERT INTO g (a, c) VALUES (1, 1), (2, 2) RETURNING *;
INSERT INTO g (a, c) VALUES (3, 0);
INSERT INTO g (a, e) VALUES (3, NULL);
UPDATE g SET a = a + 10 RETURNING *;
UPDATE g SET b = 1;
ALTER TABLE g ADD CONSTRAINT positive CHECK (a > 11);
ALTER TABLE g ADD CONSTRAINT positive CHECK (a > 5);
-- joins
CREATE TABLE l (k int PRIMARY KEY, v int);
CREATE TABLE r (k int PRIMARY KEY, v int);
INSERT INTO l SELECT i, i % 7 FROM generate_series(1, 300) i;
INSERT INTO r SELECT i * 3, i FROM generate_series(1, 300) i;
SELECT count(*), sum(l.v), sum(r.v) FROM l JOIN r USING (k);
SET enable_hashjoin = off;
SET enable_nestloop = off;
SELECT count(*), sum(l.v), sum(r.v) FROM l JOIN r USING (k);
SELECT count(*) FROM l FULL JOIN r USING (k);
SET enable_mergejoin = off;
SET enable_nestloop = on;
SELECT count(*), sum(l.v), sum(r.v) FROM l JOIN r USING (k);
RESET ALL;
SELECT k, count(*) FROM l GROUP BY k ORDER BY k LIMIT 2;
SELECT DISTINCT v FROM l ORDER BY v;
SELECT max(k), min(k) FROM l WHERE k < 200;
SELECT * FROM l WHERE k = (SELECT max(k) FROM r WHERE k < 100);
SELECT count(*) FROM l WHERE EXISTS (SELECT FROM r WHERE r.k = l.k) AND NOT EXISTS (SELECT FROM r WHERE r.k = l.k + 3);
-- A table with the name of the copy that a rewrite makes, of a table that is locked as for one.
CREATE TABLE named (k int PRIMARY KEY, v text);
INSERT INTO named VALUES (1, 'one');
SELECT 'pg_temp_' || 'named'::regclass::oid AS copy \gset
BEGIN;
LOCK TABLE named IN ACCESS EXCLUSIVE MODE;
CREATE TABLE :"copy" (k int, v text);
INSERT INTO :"copy" VALUES (1, 'a'), (1, 'b'), (2, 'c');
SELECT * FROM :"copy";
COMMIT;
SELECT * FROM :"copy";
DROP TABLE :"copy";
ALTER TABLE named ALTER k TYPE int, ALTER v TYPE text USING v || k;
SELECT * FROM named WHERE k = 1;
