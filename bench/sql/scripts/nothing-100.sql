-- The same for a statement that makes 100 keys and values.
\set n random(1, :rows)
SELECT count(key(n)), sum(length(value(n))) FROM generate_series(:n::bigint, :n::bigint + 99) n;
