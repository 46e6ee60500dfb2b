#!/usr/bin/env bash
# KubeRay. Half an hour without a word from a head is borne: a new head may need a new machine.
set -eu
. "$(dirname "$0")/variables.sh"

helm repo add kuberay https://ray-project.github.io/kuberay-helm/
helm upgrade --install kuberay-operator kuberay/kuberay-operator --version 1.7.0 \
    --namespace kuberay-operator --create-namespace \
    --set 'env[0].name=RAYJOB_STATUS_CHECK_TIMEOUT_SECONDS' --set-string 'env[0].value=1800'
