-- What a statement that writes costs without a table: as nothing.sql, with a transaction id, a commit record, and who writes it out.
\set n random(1, :rows)
SELECT key(:n), value(:n), pg_current_xact_id();
