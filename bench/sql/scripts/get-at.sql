-- A row of heap's by its place: a page is read, and no index.
\set page random(0, :pages - 1)
\set item random(1, :items)
SELECT v FROM kv WHERE ctid = ('(' || :page || ',' || :item || ')')::tid;
