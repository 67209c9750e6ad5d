#!/bin/sh
# Kills the server of ours that listens on port $1 of this network namespace, with SIGKILL.
# `pluvio dev --respawn` starts it again. Fails where none listens.
pid=$(ss -Hlntp "sport = :$1" | sed -n 's/.*,pid=\([0-9]*\),.*/\1/p' | head -n 1)
[ -n "$pid" ] && tr '\0' '\n' < "/proc/$pid/cmdline" | sed -n 2p | grep -qx server && kill -KILL "$pid"
