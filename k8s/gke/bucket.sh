#!/usr/bin/env bash
# The bucket of runs and data, and who may use it: the two service accounts of the namespace, and nobody else by this.
# What is deleted stays for seven days and is paid for meanwhile; old checkpoints are deleted all the time.
# Run again, it leaves a bucket that is there and does the rest.
set -eu
. "$(dirname "$0")/variables.sh"

gcloud storage buckets describe "gs://$BUCKET" --format 'value(name)' 2> /dev/null ||
    gcloud storage buckets create "gs://$BUCKET" --project "$PROJECT" --location "$REGION" \
        --uniform-bucket-level-access --public-access-prevention --soft-delete-duration 7d
gcloud storage buckets update "gs://$BUCKET" --lifecycle-file "$(dirname "$0")/lifecycle.json"

NUMBER=$(gcloud projects describe "$PROJECT" --format 'value(projectNumber)')
for ACCOUNT in iddpm-head iddpm-worker; do
    gcloud storage buckets add-iam-policy-binding "gs://$BUCKET" --role roles/storage.objectUser \
        --member "principal://iam.googleapis.com/projects/$NUMBER/locations/global/workloadIdentityPools/$PROJECT.svc.id.goog/subject/ns/$NAMESPACE/sa/$ACCOUNT"
done
