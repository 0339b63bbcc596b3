\set n random(1, :rows)
\set new random(1, 1000000000)
UPDATE kv SET v = value(:new) WHERE k = key(:n);
