-- An existing key gets a new value.
\set n random(1, :rows)
\set new random(1, 1000000000)
INSERT INTO kv VALUES (key(:n), value(:new)) ON CONFLICT (k) DO UPDATE SET v = excluded.v;
