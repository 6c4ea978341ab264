#!/bin/bash
# Stands in for the GPU Operator's vfio-manage.sh. There is no card to bind or unbind: each call is
# written, with the time and the pod, where the node's /var/log is mounted.
TZ=UTC printf '%(%Y-%m-%dT%H:%M:%SZ)T %s vfio-manage.sh %s\n' -1 "${POD_NAME:-$HOSTNAME}" "$*" >>/host/var/log/gpufix-calls
