#!/bin/sh
# When the configuration is to go, too: our state and our log go with it.
rm -rf /etc/quilt-gpu /var/lib/quilt-gpu /run/quilt-gpu /var/log/quilt-gpu
