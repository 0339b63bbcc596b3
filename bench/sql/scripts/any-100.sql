\set n random(0, :rows - 1)
SELECT count(*), sum(length(v)) FROM kv
WHERE k = ANY (ARRAY(SELECT key(1 + (:n::bigint + i * 7919) % :rows) FROM generate_series(0, 99) i));
