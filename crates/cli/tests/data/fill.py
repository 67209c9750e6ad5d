#!/usr/bin/env python3
"""Makes an archive of a data directory: fill.py BINARY ARCHIVE.tar.gz

Starts a cluster of BINARY, fills it, notes what BINARY reads from it, and kills it.
"""

import gzip
import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time

BINARY, ARCHIVE = sys.argv[1:3]
TABLES = ["objects", "large", "counters", "redis:0"]


def fill(run, redis):
    # Several sizes. A third is overwritten once, a ninth twice; some are deleted.
    sizes = [0, 1, 10, 100, 1000, 10_000]
    run("table", "create", "objects")
    for round, step in [(1, 1), (2, 3), (3, 9)]:
        load(run, "objects", [(f"key-{n}", text(n, round, sizes[n % 6])) for n in range(0, 300, step)])
    for n in range(6, 300, 14):
        run("delete", "objects", f"key-{n}")
    run("delete", "objects", "key-9")
    run("put", "objects", "key-9", "again")
    run("put", "objects", "00ff0a", "-", "--key-hex", input=b"\x00\xff\r\n binary")
    # Enough for closed segments, cleaning, and graves in segments that are still there.
    for round in range(1, 5):
        load(run, "large", [(f"page-{n}", text(n, round, 256 << 10)) for n in range(32)])
    load(run, "large", [("longest", text(0, 0, 1 << 20))])
    # Sums, by clients with identity.
    run("table", "create", "counters")
    for round in range(3):
        for n in range(20):
            run("incr", "counters", f"whole-{n}", str(n * 10**round - 7))
            run("incr", "counters", f"decimal-{n}", str(n + 0.25 * (round + 1)))
    # A table that is gone, a tablet that was cut, and one that has moved.
    load(run, "dropped", [(f"key-{n}", "gone") for n in range(20)])
    run("table", "drop", "dropped")
    run("table", "split", "objects", "--at", "1111111111111111")
    owner = owner_of(run, "objects", 0)
    run("table", "migrate", "objects", "--at", "0", "--to", str(owner % 3 + 1))
    for n in range(200, 240):
        run("put", "objects", f"key-{n}", f"behind the move {n}")
    for n in range(40):
        redis("SET", f"text-{n}", f"value {n}")
        redis("APPEND", f"text-{n}", " and more")
        redis("INCRBY", f"count-{n}", n - 20)
        redis("INCR", f"count-{n}")
        redis("INCRBYFLOAT", f"float-{n}", f"{n}.5")
        if n % 4 == 3:
            redis("DEL", f"text-{n}")


def text(n, round, length):
    return (f"{n}/{round} " * length)[:length]


def load(run, table, objects):
    lines = [json.dumps({"key": key, "value": value}) for key, value in objects]
    run("import", table, "-", "--format", "export", input="\n".join(lines).encode())


def owner_of(run, table, tablet):
    tables = json.loads(run("status", "--json"))["tables"]
    return next(t for t in tables if t["name"] == table)["tablets"][tablet]["server"]


def connect(address):
    host, port = address.rsplit(":", 1)
    link = socket.create_connection((host, int(port))).makefile("rwb")

    def redis(*words):
        words = [str(word).encode() for word in words]
        link.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        link.flush()
        reply = link.readline()
        assert reply[:1] in b"+:$", (words, reply)
        if reply[:1] == b"$":
            link.read(int(reply[1:]) + 2)

    return redis


def runs(pid, words):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            return words.encode() in line.read()
    except FileNotFoundError:
        return False


def pack(place):
    with gzip.GzipFile(ARCHIVE, "wb", 9, mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for folder, folders, files in os.walk(place):
            folders.sort()
            for file in sorted(files):
                path = os.path.join(folder, file)
                # Traces and locks are no data.
                if file.endswith(".log") or file == ".pluvio-lock":
                    continue
                name = os.path.relpath(path, place)
                member = archive.gettarinfo(path, name)
                member.uid = member.gid = member.mtime = 0
                member.uname = member.gname = ""
                with open(path, "rb") as content:
                    archive.addfile(member, content)


with tempfile.TemporaryDirectory() as place:
    cluster = "dev --json --servers 3 --replicas 2 --memory 64MiB --cores 1 --redis-port 0 --coordinator-port 0"
    dev = subprocess.Popen(
        [BINARY, *cluster.split(), "--data", os.path.join(place, "data")], stdout=subprocess.PIPE, text=True
    )
    ready = json.loads(dev.stdout.readline())
    env = dict(os.environ, PLUVIO_COORDINATOR=ready["coordinator"]["addr"])

    def run(*arguments, input=None):
        return subprocess.run([BINARY, *arguments], env=env, input=input, check=True, stdout=subprocess.PIPE).stdout

    fill(run, connect(ready["servers"][0]["redis"]))
    for table in TABLES:
        with open(os.path.join(place, table.replace(":", "-") + ".jsonl"), "wb") as file:
            file.write(run("scan", table, "--json", "--limit", "100000"))
    # The others die with their parent.
    dev.kill()
    dev.wait()
    for process in [*ready["coordinators"], *ready["servers"]]:
        while runs(process["pid"], place):
            time.sleep(0.01)
    pack(place)
