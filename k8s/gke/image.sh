#!/usr/bin/env bash
# The image, built here and pushed where the cluster can pull it; again for each new TAG.
set -eu
. "$(dirname "$0")/variables.sh"
cd "$(dirname "$0")/../.."

gcloud artifacts repositories describe iddpm --project "$PROJECT" --location "$REGION" --format 'value(name)' 2> /dev/null ||
    gcloud artifacts repositories create iddpm --project "$PROJECT" --location "$REGION" --repository-format docker
gcloud auth configure-docker "$REGION-docker.pkg.dev"
docker build -f k8s/images/Dockerfile -t "$IMAGE:$TAG" .
docker push "$IMAGE:$TAG"
