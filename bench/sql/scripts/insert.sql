-- One new row. The numbers of the clients interleave; `first` is behind all that were used before.
\set i :i + 1
\set n :first + :i * :clients + :client_id
INSERT INTO kv VALUES (key(:n), value(:n));
