#!/bin/sh
# A run on a GKE cluster by Google's xpk, with the image of launch/Dockerfile and a storage mounted at /mnt/rococo:
#
#     sh launch/xpk.sh --cluster CLUSTER --workload NAME --docker-image IMAGE --storage STORAGE \
#         --device-type h100-mega-80gb-8 --num-nodes 4 -- train --config coco_finetune --workdir /mnt/rococo/runs/NAME
#
# For TPUs: --tpu-type v5litepod-16 --num-slices 2, and an image with EXTRA=tpu. Options before `--` are those of
# `xpk workload create`; --dry-run among them prints the job. The words after `--` are those of `rococo`.
set -eu

words='' after=''
for word do
    shift
    if [ -z "$after" ] && [ "$word" = -- ]; then
        after=yes
    elif [ -z "$after" ]; then
        set -- "$@" "$word"
    else
        case $word in *[\"\'\\]*)
            # xpk copies the command into YAML as it is.
            echo "xpk.sh: command line: word: found $word; wanted a word without quotes and backslashes" >&2
            exit 2
        esac
        words="$words '$word'"
    fi
done
if [ -z "$words" ]; then
    echo "xpk.sh: command line: command after --: found nothing; wanted -- train --config FILE --workdir DIR" >&2
    exit 2
fi

# On GPU nodes xpk describes the group, one process for each node; on TPUs JAX finds it.
# shellcheck disable=SC2016 # variables of the container
gpus='ROCOCO_COORDINATOR=$JAX_COORDINATOR_ADDRESS:1234 ROCOCO_PROCESSES=$NNODES ROCOCO_PROCESS=$NODE_RANK'
group="if [ \$NNODES ]; then export $gpus; else export ROCOCO_COORDINATOR=auto; fi"

# A run that is stopped exits with 75, and with 1 after a lost host; xpk itself adds 127 to 255. Bad input (2) and a loss
# that diverged (3) end the job.
exec xpk workload create --max-restarts 50 --restart-on-exit-codes 1,75 --termination-grace-period-seconds 300 "$@" \
    --command "$group; export JAX_COMPILATION_CACHE_DIR=/mnt/rococo/compiled; exec until_stopped rococo$words"
