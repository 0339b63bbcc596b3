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

-- A primary key depends on its table and on nothing else of the extension, but cannot be dropped without its access method.
-- With this, DROP EXTENSION ... CASCADE drops tables and their keys first.
INSERT INTO pg_catalog.pg_depend (classid, objid, objsubid, refclassid, refobjid, refobjsubid, deptype)
    SELECT a.tableoid, a.oid, 0, k.tableoid, k.oid, 0, 'n'
    FROM pg_catalog.pg_am a, pg_catalog.pg_am k
    WHERE a.amname OPERATOR(pg_catalog.=) 'loosekv' AND k.amname OPERATOR(pg_catalog.=) 'loosekv_key';

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
COMMENT ON FUNCTION loosekv.runs(regclass) IS 'the runs of a loosekv table, newest first (for those who may read it, or all statistics; keys for those who may read the key columns of all rows)';

CREATE FUNCTION loosekv.check(relation regclass, OUT place text, OUT finding text)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'loosekv_check_wrapper' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION loosekv.check(regclass) IS 'everything that is wrong with a loosekv table: no row means that it is sound (its owner may, and pg_monitor)';

CREATE FUNCTION loosekv.table_stats(relation regclass,
        OUT levels int, OUT runs int, OUT run_rows bigint, OUT run_bytes bigint, OUT run_pages bigint,
        OUT memtables int, OUT memtable_rows bigint, OUT memtable_bytes bigint,
        OUT index_keys bigint, OUT index_bytes bigint, OUT indexed_runs int, OUT row_ids bigint,
        OUT rows_written bigint, OUT bytes_written bigint, OUT pages_written bigint,
        OUT write_amplification double precision, OUT flushes bigint, OUT compactions bigint, OUT stalls bigint,
        OUT gets bigint, OUT runs_looked_into bigint, OUT filter_probes bigint, OUT filter_hits bigint,
        OUT guided_scans bigint, OUT merged_scans bigint,
        OUT index_coverage double precision, OUT value_bytes bigint, OUT value_garbage_bytes bigint,
        OUT log_bytes bigint, OUT free_bytes bigint, OUT waiting_bytes bigint, OUT write_delay bigint)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'loosekv_table_stats_wrapper' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION loosekv.table_stats(regclass) IS 'what loosekv.stats shows, for one table (for those who may read it, or all statistics)';

-- Temporary tables of other sessions cannot be looked into, tables that one may not read must not. Who has a table to himself is not
-- waited for.
CREATE VIEW loosekv.stats AS
    SELECT n.nspname AS schemaname, c.relname AS tablename, c.oid::pg_catalog.regclass AS relation,
           CASE WHEN s.runs IS NOT NULL THEN pg_catalog.pg_relation_size(c.oid) END AS file_bytes, s.*
    FROM pg_catalog.pg_class c
         JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
         JOIN pg_catalog.pg_am a ON a.oid OPERATOR(pg_catalog.=) c.relam
         LEFT JOIN LATERAL loosekv.table_stats(c.oid::pg_catalog.regclass) s ON true
    WHERE a.amname OPERATOR(pg_catalog.=) 'loosekv' AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,m}')
          AND NOT pg_catalog.pg_is_other_temp_schema(c.relnamespace)
          AND (pg_catalog.has_table_privilege(c.oid, 'SELECT') OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE'));
COMMENT ON VIEW loosekv.stats IS 'every loosekv table of the database: runs, memtables, key index, space, and counters since it was loaded into memory';

CREATE FUNCTION loosekv.memory_parts(OUT part text, OUT bytes bigint, OUT limit_bytes bigint)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'loosekv_memory_parts_wrapper' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION loosekv.memory_parts() IS 'what loosekv.memory shows';

CREATE VIEW loosekv.memory AS SELECT * FROM loosekv.memory_parts();
COMMENT ON VIEW loosekv.memory IS 'what loosekv.shared_memory is used for, in all databases together';

CREATE FUNCTION loosekv.row_cache_counts(OUT rows bigint, OUT bytes bigint, OUT limit_bytes bigint, OUT found bigint,
        OUT kept bigint)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'loosekv_row_cache_counts_wrapper' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION loosekv.row_cache_counts() IS 'what loosekv.row_cache shows';

CREATE VIEW loosekv.row_cache AS SELECT * FROM loosekv.row_cache_counts();
COMMENT ON VIEW loosekv.row_cache IS 'rows whose pages were read from the disk again and again, in all databases together: how many are kept, their bytes, look-ups that found theirs, rows that were ever kept';

CREATE FUNCTION loosekv.progress_entries(OUT pid int, OUT relid oid, OUT command text,
        OUT done bigint, OUT total bigint, OUT unit text)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'loosekv_progress_entries_wrapper' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION loosekv.progress_entries() IS 'what loosekv.progress shows (of tables that one may read, or with the right to all statistics)';

CREATE VIEW loosekv.progress AS
    SELECT p.pid, p.relid, c.oid::pg_catalog.regclass AS relation, p.command, p.done, p.total, p.unit
    FROM loosekv.progress_entries() p
         LEFT JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) p.relid;
COMMENT ON VIEW loosekv.progress IS 'flushes, merges, index builds and checks that are at work in this database';

-- Old versions of rows are kept for whoever may still see them: this is who that is, the one that holds back most first.
CREATE VIEW loosekv.horizon AS
    SELECT h.holder, h.pid, h.name, h.database, h.xmin, pg_catalog.age(h.xmin) AS age
    FROM (SELECT CASE WHEN a.backend_type OPERATOR(pg_catalog.=) 'walsender' THEN 'standby' ELSE 'session' END AS holder,
                 a.pid, a.application_name AS name, a.datname AS database,
                 CASE WHEN a.backend_xmin IS NULL THEN a.backend_xid
                      WHEN a.backend_xid IS NULL THEN a.backend_xmin
                      WHEN pg_catalog.age(a.backend_xid) OPERATOR(pg_catalog.>) pg_catalog.age(a.backend_xmin)
                          THEN a.backend_xid ELSE a.backend_xmin END AS xmin
          FROM pg_catalog.pg_stat_activity a
          WHERE (a.datname IS NULL OR a.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
                AND a.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
          UNION ALL
          SELECT 'prepared transaction', NULL, x.gid, x.database, x.transaction
          FROM pg_catalog.pg_prepared_xacts x WHERE x.database OPERATOR(pg_catalog.=) pg_catalog.current_database()
          UNION ALL
          SELECT 'replication slot', s.active_pid, s.slot_name, s.database, s.xmin
          FROM pg_catalog.pg_replication_slots s) h
    WHERE h.xmin IS NOT NULL
    ORDER BY age DESC;
COMMENT ON VIEW loosekv.horizon IS 'sessions, standbys, prepared transactions and replication slots that keep old versions of rows from being dropped';

GRANT USAGE ON SCHEMA loosekv TO PUBLIC;
GRANT SELECT ON loosekv.stats, loosekv.memory, loosekv.row_cache, loosekv.progress, loosekv.horizon TO PUBLIC;
