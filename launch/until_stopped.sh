#!/bin/sh
# Runs a command on a preemptible host, forwards SIGTERM to it, and exits with its exit code.
#
# After SIGTERM, `rococo train` saves and exits with 0, as if done. This script then exits with 75 ("temporary failure;
# try again", sysexits.h), so that JobSet, xpk or SkyPilot starts the run again; likewise for 143, death by SIGTERM before
# there was anything to save.

# Before the child starts: without a trap a signal ends this script alone, and the child goes on.
child='' signals=0
trap 'signals=$((signals + 1)); [ -z "$child" ] || kill -TERM "$child"' TERM
"$@" &
child=$!
[ "$signals" -eq 0 ] || kill -TERM "$child"
# Bash can miss a signal that comes just as `wait` begins, and act on it only when that returns: a second at most.
while kill -0 "$child" 2>/dev/null; do
    sleep 1 >/dev/null 2>&1 &
    wait "$!"
done
code=0
wait "$child" || code=$?
if [ "$signals" -gt 0 ] && { [ "$code" -eq 0 ] || [ "$code" -eq 143 ]; }; then
    code=75
fi
exit "$code"
