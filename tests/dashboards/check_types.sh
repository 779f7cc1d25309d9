#!/bin/sh
# Do the shipped dashboards have the types that Grafana's own schema gives?  check_types.sh FOLDER [FILE...]
# Grafana itself is in no registry; its schema is, as types of TypeScript.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
folder=$1
shift
[ $# -gt 0 ] || set -- "$here"/vmplace/interfaces/prometheus/*.dashboard.json
mkdir -p "$folder"
[ -x "$folder/node_modules/.bin/tsc" ] ||
	npm install --prefix "$folder" --no-audit --no-fund --ignore-scripts --loglevel error \
		@grafana/schema@13.2.3 typescript@5.9.3
for file in "$@"; do
	{
		echo 'import type { Dashboard } from "@grafana/schema";'
		echo 'export const dashboard: Dashboard ='
		cat "$file"
	} >"$folder/dashboard.ts"
	"$folder/node_modules/.bin/tsc" --noEmit --strict --skipLibCheck --target es2022 --module esnext \
		--moduleResolution bundler "$folder/dashboard.ts"
	echo "$(basename "$file"): the types are those of Grafana's schema"
done
