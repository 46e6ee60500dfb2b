# What the other files here are told; set these to your own values, then read each file before you run it.
export PROJECT=my-project            # gcloud projects list
export REGION=europe-west4           # with the GPUs that you want: gcloud compute accelerator-types list
export ZONE=europe-west4-a
export CLUSTER=iddpm
export BUCKET=my-bucket              # a name that nobody else in the world has
export NAMESPACE=iddpm
export TAG=0.1.0
export IMAGE=$REGION-docker.pkg.dev/$PROJECT/iddpm/iddpm-ray
