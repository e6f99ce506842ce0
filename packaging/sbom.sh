#!/bin/bash
# What is linked into the programs, as a CycloneDX document: packaging/sbom.sh NAME VERSION. From the lock file, by cargo.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo tree --locked --offline -p shim -p hook -p engine -p helper -e normal,no-proc-macro --prefix none -f '{p}|{l}' |
    sed -n 's/^\([^ ]*\) v\([^ |]*\)[^|]*|\(.*\)$/\1|\2|\3/p' | sort -u |
    awk -F'|' -v name="$1" -v version="$2" '
        BEGIN {
            printf "{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,\n"
            printf "  \"metadata\": {\"component\": {\"type\": \"application\", \"name\": \"%s\", \"version\": \"%s\"}},\n", name, version
            printf "  \"components\": ["
        }
        {
            printf "%s\n    {\"type\": \"library\", \"name\": \"%s\", \"version\": \"%s\", \"purl\": \"pkg:cargo/%s@%s\"", (NR > 1 ? "," : ""), $1, $2, $1, $2
            gsub("/", " OR ", $3)
            if ($3 != "") printf ", \"licenses\": [{\"expression\": \"%s\"}]", $3
            printf "}"
        }
        END { printf "\n  ]\n}\n" }'
