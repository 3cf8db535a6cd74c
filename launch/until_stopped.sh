#!/bin/sh
# Runs a command on a preemptible host, forwards SIGTERM to it, and exits with its exit code.
#
# After SIGTERM, `rococo train` saves and exits with 0, as if done. This script then exits with 75 ("temporary failure;
# try again", sysexits.h), so that the launcher starts the run again; likewise for 143, death by SIGTERM before there
# was anything to save.
# With EXIT_CODE_FILE, the exit code is also written there.

"$@" &
child=$!
signals=0
trap 'signals=$((signals + 1)); kill -TERM "$child"' TERM
# A signal ends `wait` before the child has ended.
while :; do
    before=$signals
    code=0
    wait "$child" || code=$?
    [ "$signals" -eq "$before" ] && break
done
if [ "$signals" -gt 0 ] && { [ "$code" -eq 0 ] || [ "$code" -eq 143 ]; }; then
    code=75
fi
if [ -n "${EXIT_CODE_FILE:-}" ]; then
    echo "$code" > "$EXIT_CODE_FILE"
fi
exit "$code"
