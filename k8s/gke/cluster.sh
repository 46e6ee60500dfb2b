#!/usr/bin/env bash
# The cluster: one small on-demand pool for heads, the operator and runs without GPUs, pools of GPU machines that are empty until a run
# wants them. Each head takes 2.5 of the 3.92 CPUs that a small machine has for pods, so each run under way has a machine for its head.
# Costs what the cluster's management fee and one e2-standard-4 cost, all day.
set -eu
. "$(dirname "$0")/variables.sh"

gcloud services enable container.googleapis.com artifactregistry.googleapis.com storage.googleapis.com --project "$PROJECT"

gcloud container clusters create "$CLUSTER" --project "$PROJECT" --zone "$ZONE" \
    --release-channel regular \
    --workload-pool "$PROJECT.svc.id.goog" \
    --enable-dataplane-v2 \
    --enable-managed-prometheus \
    --enable-image-streaming \
    --machine-type e2-standard-4 --num-nodes 1 --enable-autoscaling --min-nodes 1 --max-nodes 5

# Spot machines with an L4. A pod there has 15 s between notice and end.
gcloud container node-pools create l4-spot --project "$PROJECT" --cluster "$CLUSTER" --zone "$ZONE" \
    --spot --machine-type g2-standard-8 --accelerator type=nvidia-l4,count=1,gpu-driver-version=latest \
    --workload-metadata GKE_METADATA --disk-size 100 --enable-image-streaming \
    --num-nodes 0 --enable-autoscaling --min-nodes 0 --max-nodes 8

# The same on demand, for kube.capacity: spot-first and on-demand.
gcloud container node-pools create l4 --project "$PROJECT" --cluster "$CLUSTER" --zone "$ZONE" \
    --machine-type g2-standard-8 --accelerator type=nvidia-l4,count=1,gpu-driver-version=latest \
    --workload-metadata GKE_METADATA --disk-size 100 --enable-image-streaming \
    --num-nodes 0 --enable-autoscaling --min-nodes 0 --max-nodes 8

gcloud container clusters get-credentials "$CLUSTER" --project "$PROJECT" --zone "$ZONE"
