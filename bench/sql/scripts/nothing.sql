-- What a statement costs without a table: protocol, executor, making the key and the value.
\set n random(1, :rows)
SELECT key(:n), value(:n);
