\echo Use "CREATE EXTENSION loosekv" to load this file. \quit

CREATE FUNCTION loosekv.require_preload() RETURNS void
    AS 'MODULE_PATHNAME', 'loosekv_require_preload' LANGUAGE C STRICT;
REVOKE ALL ON FUNCTION loosekv.require_preload() FROM PUBLIC;
SELECT loosekv.require_preload();

CREATE FUNCTION loosekv.table_handler(internal) RETURNS table_am_handler
    AS 'MODULE_PATHNAME', 'loosekv_table_handler' LANGUAGE C STRICT;
REVOKE ALL ON FUNCTION loosekv.table_handler(internal) FROM PUBLIC;
CREATE ACCESS METHOD loosekv TYPE TABLE HANDLER loosekv.table_handler;
COMMENT ON ACCESS METHOD loosekv IS 'table in a log-structured merge tree, ordered by its primary key';

CREATE FUNCTION loosekv.key_handler(internal) RETURNS index_am_handler
    AS 'MODULE_PATHNAME', 'loosekv_key_handler' LANGUAGE C STRICT;
REVOKE ALL ON FUNCTION loosekv.key_handler(internal) FROM PUBLIC;
CREATE ACCESS METHOD loosekv_key TYPE INDEX HANDLER loosekv.key_handler;
COMMENT ON ACCESS METHOD loosekv_key IS 'primary key of a loosekv table: the table itself (not to be named in SQL)';

-- For those who run the database. The functions check privileges themselves: see their comments.

CREATE FUNCTION loosekv.flush(relation regclass) RETURNS void
    AS 'MODULE_PATHNAME', 'loosekv_flush_wrapper' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION loosekv.flush(regclass) IS 'writes the memtables of a loosekv table to runs (its owner may)';

CREATE FUNCTION loosekv.compact(relation regclass) RETURNS void
    AS 'MODULE_PATHNAME', 'loosekv_compact_wrapper' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION loosekv.compact(regclass) IS 'flushes a loosekv table and merges all its runs into one (its owner may)';

CREATE FUNCTION loosekv.runs(relation regclass,
        OUT run bigint, OUT level int, OUT first_l0 bigint, OUT last_l0 bigint,
        OUT rows bigint, OUT keys bigint, OUT tombstones bigint, OUT row_bytes bigint, OUT pages bigint,
        OUT settled boolean, OUT compressed boolean, OUT min_key bytea, OUT max_key bytea)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'loosekv_runs_wrapper' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION loosekv.runs(regclass) IS 'the runs of a loosekv table, newest first (for those who may read it, or all statistics)';

CREATE FUNCTION loosekv.table_stats(relation regclass,
        OUT levels int, OUT runs int, OUT run_rows bigint, OUT run_bytes bigint, OUT run_pages bigint,
        OUT memtables int, OUT memtable_rows bigint, OUT memtable_bytes bigint,
        OUT index_keys bigint, OUT index_bytes bigint, OUT indexed_runs int, OUT row_ids bigint,
        OUT rows_written bigint, OUT bytes_written bigint, OUT pages_written bigint,
        OUT write_amplification double precision, OUT flushes bigint, OUT compactions bigint, OUT stalls bigint,
        OUT gets bigint, OUT runs_looked_into bigint, OUT filter_probes bigint, OUT filter_hits bigint,
        OUT guided_scans bigint, OUT merged_scans bigint)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'loosekv_table_stats_wrapper' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION loosekv.table_stats(regclass) IS 'what loosekv.stats shows, for one table';

-- Temporary tables of other sessions cannot be looked into, tables that one may not read must not.
CREATE VIEW loosekv.stats AS
    SELECT n.nspname AS schemaname, c.relname AS tablename, c.oid::pg_catalog.regclass AS relation,
           pg_catalog.pg_relation_size(c.oid) AS file_bytes, s.*
    FROM pg_catalog.pg_class c
         JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
         JOIN pg_catalog.pg_am a ON a.oid OPERATOR(pg_catalog.=) c.relam,
         LATERAL loosekv.table_stats(c.oid::pg_catalog.regclass) s
    WHERE a.amname OPERATOR(pg_catalog.=) 'loosekv' AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,m}')
          AND NOT pg_catalog.pg_is_other_temp_schema(c.relnamespace)
          AND (pg_catalog.has_table_privilege(c.oid, 'SELECT') OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE'));

GRANT USAGE ON SCHEMA loosekv TO PUBLIC;
GRANT SELECT ON loosekv.stats TO PUBLIC;
