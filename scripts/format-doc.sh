#!/usr/bin/env bash
# Writes docs/format.md: every byte on disk and in WAL, from the module documentation of the code that writes it.
# With --check it only says whether the file is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

section() { # section TITLE FILE
    printf '\n## %s\n\n`%s`\n\n' "$1" "$2"
    sed -n 's#^//! \{0,1\}##p' "$2" | sed '/^#\{1,\} /d'
}

page() {
    cat <<'E2'
# Formats

Made by `scripts/format-doc.sh` from the module documentation of the code that writes and reads each of them. Numbers are
little endian unless it says otherwise. Golden-byte tests in these modules, or beside them, fail when a format changes without a
new version number. Of keys and bodies of PostgreSQL rows they say how bytes are read, for to write them takes a server; where the
parts of a WAL record stand is looked at when the code is compiled.
E2
    section "Pages" engine/src/page.rs
    section "Pages in PostgreSQL" extension/src/host/buffer.rs
    section "Manifest" engine/src/manifest.rs
    section "Log records" engine/src/row.rs
    section "Row log in PostgreSQL" extension/src/host/log.rs
    section "Log pages in PostgreSQL" extension/src/host/log_head.rs
    section "WAL records" extension/src/pg/rmgr.rs
    section "Changes for logical decoding" extension/src/pg/logical.rs
    section "Runs" engine/src/run/mod.rs
    section "Data pages" engine/src/run/data.rs
    section "Key pages" engine/src/run/keys.rs
    section "Row directory" engine/src/run/directory.rs
    section "Filter pages" engine/src/filter/mod.rs
    section "Blocked Bloom filters" engine/src/filter/bloom.rs
    section "Ribbon filters" engine/src/filter/ribbon.rs
    section "Fence pages" engine/src/run/fence.rs
    section "Footer" engine/src/run/footer.rs
    section "Value log" engine/src/tree/value_log.rs
    section "Keys of PostgreSQL rows" extension/src/codec/key.rs
    section "Bodies of PostgreSQL rows" extension/src/codec/row.rs
    section "Embedded store: page file" engine/src/embedded/page_file.rs
    section "Embedded store: meta file" engine/src/embedded/meta_file.rs
    section "Embedded store: log segments" engine/src/embedded/log_segment.rs
}

if [ "${1:-}" = --check ]; then
    page | cmp -s - docs/format.md || {
        echo "docs/format.md is out of date: run scripts/format-doc.sh" >&2
        exit 1
    }
else
    page >docs/format.md
fi
