#!/usr/bin/env bash
# Optional: spot machines that give 120 s of notice, 105 of them to a pod. Then set kube.reclaim_window_s: 105 in the specs.
# Needs GKE 1.35.0-gke.1171000 or newer.
set -eu
. "$(dirname "$0")/variables.sh"

gcloud container node-pools create l4-spot-120s --project "$PROJECT" --cluster "$CLUSTER" --zone "$ZONE" \
    --spot --machine-type g2-standard-8 --accelerator type=nvidia-l4,count=1,gpu-driver-version=latest \
    --workload-metadata GKE_METADATA --disk-size 100 --enable-image-streaming \
    --system-config-from-file "$(dirname "$0")/nodepool-spot-120s.yaml" \
    --num-nodes 0 --enable-autoscaling --min-nodes 0 --max-nodes 8
