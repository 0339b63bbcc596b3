-- A queue: read at one end, written at the other, and now and then in the middle of what was taken.
CREATE TABLE q (k bigint PRIMARY KEY, v text);
INSERT INTO q SELECT i, 'job ' || i FROM generate_series(1001, 1500) i;
CREATE FUNCTION pop() RETURNS bigint LANGUAGE sql AS
    'DELETE FROM q WHERE k = (SELECT k FROM q ORDER BY k LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING k';
CREATE PROCEDURE pops(n int) LANGUAGE plpgsql AS $$
DECLARE last bigint := 0; k bigint;
BEGIN
    FOR i IN 1..n LOOP
        k := pop();
        IF k <= last THEN RAISE EXCEPTION '% came after %', k, last; END IF;
        last := k;
        COMMIT;
    END LOOP;
    RAISE NOTICE 'last: %', last;
END $$;
CALL pops(300);
SELECT pop();
-- Somebody comes late, before all others.
INSERT INTO q VALUES (5, 'early'), (1100, 'middle');
SELECT pop();
SELECT pop();
SELECT pop();
CALL pops(70);
-- What is rolled back was not there.
BEGIN;
INSERT INTO q VALUES (1200, 'perhaps');
SAVEPOINT a;
SELECT pop();
ROLLBACK TO a;
SELECT min(k), count(*) FROM q;
SELECT k FROM q ORDER BY k LIMIT 2;
ROLLBACK;
SELECT k FROM q ORDER BY k LIMIT 2;
BEGIN;
DELETE FROM q WHERE k < 1450;
SELECT k FROM q ORDER BY k LIMIT 1;
ROLLBACK;
SELECT k FROM q ORDER BY k LIMIT 1;
-- An older reader.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT k FROM q ORDER BY k LIMIT 1;
DECLARE c SCROLL CURSOR FOR SELECT k FROM q ORDER BY k;
FETCH 3 FROM c;
FETCH BACKWARD 5 FROM c;
DELETE FROM q WHERE k < 1440;
FETCH 3 FROM c;
SELECT k FROM q ORDER BY k LIMIT 1;
COMMIT;
-- Begins in the middle, backwards, and other ends.
SELECT k FROM q WHERE k > 1003 ORDER BY k LIMIT 2;
SELECT k FROM q WHERE k > 1003 AND k < 1030 ORDER BY k LIMIT 2;
SELECT k FROM q WHERE k < 1442 ORDER BY k DESC LIMIT 3;
UPDATE q SET k = 1010 WHERE k = 1490;
SELECT k FROM q WHERE k > 1003 ORDER BY k LIMIT 2;
CALL pops(50);
-- Empty, several times over.
DELETE FROM q;
SELECT pop() FROM generate_series(1, 5);
INSERT INTO q VALUES (1001, 'again');
SELECT pop(), pop();
TRUNCATE q;
INSERT INTO q VALUES (1001, 'and again');
SELECT * FROM q ORDER BY k LIMIT 1;
DROP TABLE q;
DROP FUNCTION pop;
DROP PROCEDURE pops;
