#!/usr/bin/env bash
# Controls the run on one host of a TPU slice. launch/tpu.py calls it over ssh in the copy of the checkout:
#
#   tpu_host.sh start DISK TIMEOUT WORDS...   run `rococo WORDS` in the background, unless it is running
#   tpu_host.sh follow RESULT                 print the log until the run ends; exit with its code, 75 if it was stopped
#   tpu_host.sh stop                          send SIGTERM: the run saves and ends
#
# The background run outlives the ssh connection. It writes run.log, run.pid and run.code in the checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mount=/mnt/rococo

runs() {
    [[ -s run.pid ]] && kill -0 "$(cat run.pid)" 2>/dev/null
}

install_gcsfuse() {
    local release key=/usr/share/keyrings/cloud.google.asc
    release="gcsfuse-$(lsb_release --codename --short)"
    curl --silent --fail https://packages.cloud.google.com/apt/doc/apt-key.gpg | sudo tee "$key" > /dev/null
    echo "deb [signed-by=$key] https://packages.cloud.google.com/apt $release main" \
        | sudo tee /etc/apt/sources.list.d/gcsfuse.list > /dev/null
    sudo apt-get -qq update
    sudo apt-get -qq install -y gcsfuse
}

mount_disk() {
    local disk=$1 bucket folder options=()
    if mountpoint --quiet "$mount"; then
        return
    fi
    sudo mkdir -p "$mount"
    if [[ "$disk" == gs://* ]]; then
        command -v gcsfuse > /dev/null || install_gcsfuse
        sudo chown "$(id --user)" "$mount"
        bucket=${disk#gs://}
        folder=${bucket#"${bucket%%/*}"}
        if [[ -n "${folder#/}" ]]; then
            options+=(--only-dir "${folder#/}")
        fi
        # A checkpoint appears by renaming its folder.
        gcsfuse --implicit-dirs --rename-dir-limit 200000 "${options[@]}" "${bucket%%/*}" "$mount"
    else
        command -v mount.nfs > /dev/null || sudo apt-get -qq install -y nfs-common
        sudo mount -t nfs "$disk" "$mount"
    fi
}

install_rococo() {
    local python=""
    for name in python3.13 python3.12 python3.11; do
        if command -v "$name" > /dev/null; then
            python=$name
            break
        fi
    done
    if [[ -z "$python" ]] || ! "$python" -c 'import ensurepip' 2>/dev/null; then
        python=${python:-python3.11}
        sudo apt-get -qq update
        sudo apt-get -qq install -y "$python" "$python-venv"
    fi
    [[ -x .venv/bin/python ]] || "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --constraint launch/constraints.txt --editable '.[tpu]'
}

case "$1" in
    start)
        if runs; then
            echo "runs already, as process $(cat run.pid)"
            exit
        fi
        rm -f run.code
        nohup setsid bash launch/tpu_host.sh in-background "${@:2}" > run.log 2>&1 < /dev/null &
        echo "$!" > run.pid
        ;;
    in-background)
        mount_disk "$2"
        install_rococo
        export ROCOCO_COORDINATOR=auto ROCOCO_TIMEOUT=$3 EXIT_CODE_FILE=run.code
        # A new slice finds what process 0 of an earlier one has compiled.
        export JAX_COMPILATION_CACHE_DIR="$mount/compiled"
        exec sh launch/until_stopped.sh .venv/bin/rococo "${@:4}"
        ;;
    follow)
        if [[ ! -e run.pid ]]; then
            echo "nothing was started here" >&2
            exit 1
        fi
        tail --lines=+1 --follow=name --pid="$(cat run.pid)" run.log
        code=$(cat run.code 2>/dev/null || echo 1)
        # The run was stopped through another host: exit code 0 here, and no RESULT.
        if [[ "$code" == 0 && ! -e "$2" ]]; then
            code=75
        fi
        exit "$code"
        ;;
    stop)
        if runs; then
            kill -TERM "$(cat run.pid)"
        fi
        ;;
    *)
        echo "tpu_host.sh: found '$1'; wanted start, follow or stop" >&2
        exit 2
        ;;
esac
