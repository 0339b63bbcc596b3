-- A hundred different existing keys. Statements that share keys meet them in the same order, so they do not deadlock.
\set n random(0, :rows - 1)
\set new random(1, 1000000000)
INSERT INTO kv SELECT key(1 + (:n::bigint + i * 7919) % :rows), value(:new::bigint + i) FROM generate_series(0, 99) i
ON CONFLICT (k) DO UPDATE SET v = excluded.v;
