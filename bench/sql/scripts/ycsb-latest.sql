-- Reads what came last: of this run, and before that of the load.
\set z random_zipfian(1, :rows, 1.01)
\set own :i * :clients
\if :z <= :own
    \set n :first + :own + :client_id - (:z - 1) / :clients * :clients
\else
    \set n greatest(1, :rows - (:z - :own))
\endif
SELECT v FROM kv WHERE k = key(:n);
