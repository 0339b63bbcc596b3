-- COPY hands rows over by the thousand: all of them arrive, and a duplicate is found wherever it stands.
CREATE TABLE t (k int PRIMARY KEY, v text);
COPY t (k) FROM PROGRAM 'seq 1 3000';
SELECT count(*), min(k), max(k), sum(k) FROM t;
-- In no order, beside rows that are there.
COPY t (k) FROM PROGRAM 'seq 1 2500 | awk ''{ print 10000 + ($1 * 7919) % 2503 }''';
SELECT count(*), min(k), max(k), sum(k) FROM t;
SELECT k FROM t WHERE k > 10000 ORDER BY k LIMIT 3;
-- Duplicates of rows that were there before, at the beginning, at and behind the ends of what is appended at once.
COPY t (k) FROM PROGRAM 'echo 5; seq 20001 21000';
COPY t (k) FROM PROGRAM 'seq 20001 20063; echo 5; seq 20064 21000';
COPY t (k) FROM PROGRAM 'seq 20001 20064; echo 5; seq 20065 21000';
COPY t (k) FROM PROGRAM 'seq 20001 20065; echo 5; seq 20066 21000';
COPY t (k) FROM PROGRAM 'seq 20001 21500; echo 5';
-- Of rows of the same COPY.
COPY t (k) FROM PROGRAM 'seq 20001 20003; echo 20002; seq 20004 21000';
COPY t (k) FROM PROGRAM 'seq 20001 20064; echo 20001; seq 20065 21000';
COPY t (k) FROM PROGRAM 'seq 20001 21999; echo 20064';
SELECT count(*), sum(k) FROM t;
-- Keys whose rows were deleted, by others and in the same transaction, may come again.
DELETE FROM t WHERE k % 3 = 0;
COPY t (k, v) FROM PROGRAM 'seq 3 3 3000 | sed ''s/$/\tagain/''';
SELECT count(*), count(v), sum(k) FROM t;
BEGIN;
DELETE FROM t WHERE k <= 500;
COPY t (k, v) FROM PROGRAM 'seq 1 500 | sed ''s/$/\tonce more/''';
COMMIT;
SELECT count(*), count(v), sum(k) FROM t;
-- Rolled back, and once more.
BEGIN;
COPY t (k) FROM PROGRAM 'seq 30001 32000';
SELECT count(*) FROM t WHERE k > 30000;
ROLLBACK;
COPY t (k) FROM PROGRAM 'seq 30001 32000';
SELECT count(*) FROM t WHERE k > 30000;
-- A secondary index gets the rows, too.
CREATE TABLE s (k int PRIMARY KEY, n int UNIQUE);
COPY s FROM PROGRAM 'seq 1 1000 | awk ''{ print ($1 * 7919) % 1009 "\t" $1 }''';
SELECT k FROM s WHERE n = 129;
COPY s FROM PROGRAM 'seq 2001 2100 | sed ''s/\(.*\)/\1\t\1/''; printf ''3000\t129\n''';
SELECT count(*) FROM s;
DROP TABLE t, s;
