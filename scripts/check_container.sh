#!/usr/bin/env bash
# Build the container image, start it with the compose file on a small run, and use it.
#
#   scripts/check_container.sh                   needs Docker with its plugin for compose, and curl
#
# DOCKER: the command (docker). The image `oneshot` stays; the container and the run are removed.
set -euo pipefail
cd "$(dirname "$0")/.."
DOCKER=${DOCKER:-docker}
place=$(mktemp -d)
export ONESHOT_RUN=$place/run ONESHOT_TOKEN=a-token ONESHOT_PORT=${ONESHOT_PORT:-18000}
compose=("$DOCKER" compose --project-name oneshot-check -f deploy/compose.yaml)

clean() {
  "${compose[@]}" logs --no-color || true
  "${compose[@]}" down --timeout 20 || true
  # The files in it belong to the user of the image.
  "$DOCKER" run --rm --user 0 -v "$place:/place" --entrypoint rm oneshot -rf /place/run || true
  rmdir "$place"
}
trap clean EXIT

make_run='
import os
from oneshot.data.load import load
from oneshot.experiments.demo import demo_config
from oneshot.reasoner.build import build_reasoner
build_reasoner(load("world").graph, demo_config()).save("/place/run")
for directory, _, files in os.walk("/place/run"):
    for path in (directory, *(os.path.join(directory, name) for name in files)):
        os.chown(path, 1000, 1000)
'
request() { # request PATH BODY: the response, or an error
  curl --silent --show-error --fail -H "Authorization: Bearer $ONESHOT_TOKEN" \
    -H 'Content-Type: application/json' -d "$2" "http://127.0.0.1:$ONESHOT_PORT$1"
}

"${compose[@]}" build
"$DOCKER" run --rm --user 0 -v "$place:/place" --entrypoint python oneshot -c "$make_run"
"${compose[@]}" up --detach --wait --wait-timeout 180 # until it is healthy
request /v1/predict '{"questions": [{"entity": "Bolivia", "relation": "borders"}], "top": 3}' |
  grep -q '"answers":\[{"entity"'
request /v1/facts '{"facts": [["Atlantis", "borders", "Chile"]]}' | grep -q '"added":1'
"${compose[@]}" stop
"${compose[@]}" ps --all --format '{{.ExitCode}}' | grep -qx 0
echo "the container answers, stores facts and stops"
