#!/usr/bin/env bash
# Run the tests under many settings of the machine, one after the other, and print a table of the
# outcomes. What a setting is to show is written beside it below.
#
#   scripts/test_matrix.sh                       all settings
#   scripts/test_matrix.sh user umask            some of them
#   scripts/test_matrix.sh narrow -- tests/test_cli.py    what stands behind -- goes to pytest
#
# BIN: where Python is (.venv/bin); SEED: of the random order; LOGS: where the output goes
# (.scratch/matrix). Exits with 1 if a test failed.
set -uo pipefail
cd "$(dirname "$0")/.."
ROOT=$PWD
BIN=$(cd "${BIN:-.venv/bin}" && pwd) || exit 2
SEED=${SEED:-$((RANDOM * 32768 + RANDOM))}
LOGS=${LOGS:-.scratch/matrix}
ALL=(plain threads-1 threads-4 cpu-default cpu-avx2 cpu-avx512 onednn-avx2 shuffle serial workers-4
  user umask tmpfs home locale narrow timezone)

tests() { "$BIN/python" -m pytest -q "${ARGUMENTS[@]}" "$@"; }

has_flags() { # whether the CPU has them; torch does not ask before it uses what it is told to
  local flag
  for flag in "$@"; do grep -qw "$flag" /proc/cpuinfo 2>/dev/null || return 1; done
}

impossible() {
  echo "not possible here: $1"
  return 77
}

borrow_packages() { # borrow_packages VENV PYTHON: an environment with the packages of BIN
  local script site
  site=$("$BIN/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$2" -m venv --without-pip "$1" &&
    echo "import site; site.addsitedir('$site')" >"$1/lib/$(basename "$2")/site-packages/more.pth" &&
    for script in "$BIN"/*; do
      if [ ! -e "$1/bin/$(basename "$script")" ] && head -n 1 "$script" | grep -q "^#!$BIN/python"
      then sed "1s|.*|#!$1/bin/python|" "$script" >"$1/bin/$(basename "$script")"; fi
    done && chmod +x "$1"/bin/*
}

as_user() { # an ordinary user, in a copy that is his own; as we are, unless we are root
  if [ "$(id -u)" -ne 0 ]; then
    tests
    return
  fi
  command -v setpriv >/dev/null || { impossible "there is no setpriv"; return; }
  local place python name bin=$BIN code
  local user=(setpriv "--reuid=nobody" "--regid=$(id -g nobody)" --clear-groups)
  place=$(mktemp -d) && chmod 755 "$place" && mkdir "$place/checkout" "$place/home"
  if ! "${user[@]}" test -x "$BIN/python"; then
    # A Python in the home of root, say: one of the same version that all can run will do.
    name=$("$BIN/python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    python=$(PATH=/usr/local/bin:/usr/bin "${user[@]}" sh -c "command -v $name") &&
      "${user[@]}" test -r "$BIN/../lib/$name/site-packages" &&
      borrow_packages "$place/venv" "$python" ||
      { rm -rf "$place"; impossible "others cannot run $BIN/python"; return; }
    bin=$place/venv/bin
  fi
  if git rev-parse --git-dir >/dev/null 2>&1; then
    { git ls-files -z --cached --others --exclude-standard --deduplicate &&
      find src -name '*.so' -print0; } | # compiled in place
      while IFS= read -r -d '' file; do [ -e "$file" ] && printf '%s\0' "$file"; done |
      tar --create --null --files-from=- | tar --extract --directory "$place/checkout"
  else
    tar --create --exclude './.venv*' . | tar --extract --directory "$place/checkout"
  fi
  chown -R "nobody:$(id -g nobody)" "$place"
  (
    cd "$place/checkout" || exit 2
    # The package is installed from the other checkout, which this one goes before.
    export HOME=$place/home TMPDIR=$place PYTHONPATH=$place/checkout/src
    unset XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME
    "${user[@]}" "$bin/python" -m pytest -q "${ARGUMENTS[@]}"
  )
  code=$?
  rm -rf "$place"
  return $code
}

in_memory() { # files in a tmpfs, which knows no O_DIRECT, other times of files, other limits
  local place code
  place=$(mktemp -d /dev/shm/oneshot.XXXXXX 2>/dev/null) || { impossible "no /dev/shm"; return; }
  TMPDIR=$place tests
  code=$?
  rm -rf "$place"
  return $code
}

run_setting() {
  case $1 in
    plain) tests ;;
    # The order of a sum, and so its last bits, depends on threads and instructions.
    threads-1) OMP_NUM_THREADS=1 tests ;;
    threads-4) OMP_NUM_THREADS=4 tests ;;
    cpu-default) ATEN_CPU_CAPABILITY=default tests ;;
    cpu-avx2)
      has_flags avx2 fma || { impossible "the CPU has no AVX2"; return; }
      ATEN_CPU_CAPABILITY=avx2 tests ;;
    cpu-avx512)
      has_flags avx512f avx512bw avx512dq avx512vl fma ||
        { impossible "the CPU has no AVX-512"; return; }
      ATEN_CPU_CAPABILITY=avx512 tests ;;
    onednn-avx2) ONEDNN_MAX_CPU_ISA=AVX2 tests ;;
    # No test needs what another one has left.
    shuffle) echo "seed $SEED" && tests --shuffle "$SEED" ;;
    serial) tests -n 0 ;;
    workers-4) tests -n 4 ;;
    # Permissions, and what root alone can do.
    user) as_user ;;
    umask) (umask 077 && tests) ;;
    tmpfs) in_memory ;;
    home) HOME=/dev/null tests ;; # where nothing can be written, not even by root
    # How text is read, written and broken into lines.
    locale) LC_ALL=C LANG=C tests ;;
    narrow) COLUMNS=40 LINES=10 tests ;;
    timezone) TZ=Pacific/Kiritimati tests ;;
    *) echo "there is no setting $1; known are: ${ALL[*]}" >&2 && return 2 ;;
  esac
}

count() { # how many tests had an outcome, from the last line of a log
  tail -n 1 "$1" | grep -oE "[0-9]+ $2" | grep -oE "[0-9]+" || echo 0
}

SETTINGS=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  [[ " ${ALL[*]} " == *" $1 "* ]] || { run_setting "$1"; exit 2; }
  SETTINGS+=("$1")
  shift
done
[ $# -gt 0 ] && shift
ARGUMENTS=("$@")
[ ${#SETTINGS[@]} -gt 0 ] || SETTINGS=("${ALL[@]}")

mkdir -p "$LOGS" && LOGS=$(cd "$LOGS" && pwd)
FORMAT="%-12s %7s %7s %7s %7s %8s\n"
# shellcheck disable=SC2059
printf "$FORMAT" setting passed failed errors skipped seconds
STATUS=0
for setting in "${SETTINGS[@]}"; do
  log=$LOGS/$setting.log
  begun=$SECONDS
  run_setting "$setting" >"$log" 2>&1 </dev/null
  code=$?
  cd "$ROOT" || exit 2
  if [ $code -eq 77 ]; then
    printf "%-12s %s\n" "$setting" "$(tail -n 1 "$log")"
    continue
  fi
  # shellcheck disable=SC2059
  printf "$FORMAT" "$setting" "$(count "$log" passed)" "$(count "$log" failed)" \
    "$(count "$log" "errors?")" "$(count "$log" skipped)" $((SECONDS - begun))
  if [ $code -ne 0 ]; then
    STATUS=1
    grep -E "^(FAILED|ERROR)" "$log" | cut -c 1-150 | sed 's/^/  /'
    echo "  exit code $code, see $log"
  fi
done
exit $STATUS
