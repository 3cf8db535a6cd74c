#!/bin/sh
# Evaluate eight published CLIPs on RoCOCO and SugarCrepe, and write results/leaderboard.md and .csv:
#
#     sh tools/evaluate_published.sh DATA [options of rococo evaluate]
#
# docs/how-to/published-clips.md describes DATA and the results. The same command again evaluates what is missing.
set -eu

if [ "$#" -eq 0 ]; then
    echo "evaluate_published.sh: command line: DATA: found nothing; wanted the folder of benchmarks" >&2
    exit 2
fi
data=$1
shift

# Their recalls on COCO are published: `rococo evaluate` prints the difference.
code=0
rococo evaluate \
    openai/clip-vit-base-patch32 \
    openai/clip-vit-base-patch16 \
    openai/clip-vit-large-patch14 \
    openai/clip-vit-large-patch14-336 \
    laion/CLIP-ViT-B-32-laion2B-s34B-b79K \
    laion/CLIP-ViT-B-16-laion2B-s34B-b88K \
    laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K \
    laion/CLIP-ViT-L-14-laion2B-s32B-b82K \
    --data "$data" --benchmarks rococo,sugarcrepe --out results "$@" || code=$?

# 1: a model could not be loaded, and results/journal.jsonl says why. The table has the others.
if [ "$code" -le 1 ]; then
    rococo leaderboard results --format markdown --out results/leaderboard.md
    rococo leaderboard results --format csv --out results/leaderboard.csv
fi
exit "$code"
