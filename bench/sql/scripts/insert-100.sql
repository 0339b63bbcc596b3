\set i :i + 1
\set n :first + (:i * :clients + :client_id) * 100
INSERT INTO kv SELECT key(n), value(n) FROM generate_series(:n::bigint, :n::bigint + 99) n;
