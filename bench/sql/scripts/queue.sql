-- One row comes at the end, one goes at the front, over all the tombstones.
\set i :i + 1
\set n :first + :i * :clients + :client_id
INSERT INTO queue VALUES (:n, value(:n));
DELETE FROM queue WHERE k = (SELECT k FROM queue ORDER BY k LIMIT 1 FOR UPDATE SKIP LOCKED);
