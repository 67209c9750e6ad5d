// Writes of cluster clients while servers are killed.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { connect } from "node:net";
import { setTimeout as pause } from "node:timers/promises";

const writers = 4;
// Writes of each before a kill, and after it.
const steps = 200;

/**
 * Four writers write while the servers of `ports` are killed one after the other. Each is started
 * again before the next. Then all that was acknowledged is read. Gives whether servers were killed:
 * with one server, or with others than ours, none is.
 */
export async function writeWhileServersDie(ports, write, read) {
  if (ports.length === 1) {
    return false;
  }
  const done = Array(writers).fill(0);
  let longest = 0;
  let stopped = false;
  const writer = async (at) => {
    while (!stopped) {
      const began = performance.now();
      await write(`w${at}:${done[at]}`, String(done[at]));
      longest = Math.max(longest, performance.now() - began);
      done[at] += 1;
    }
  };
  const writing = Promise.all(done.map((_, at) => writer(at)));
  let failed;
  writing.catch((error) => (failed = error));
  const until = async (is) => {
    while (!(await is())) {
      if (failed) {
        throw failed;
      }
      await pause(1);
    }
  };
  const more = async () => {
    const wanted = done.map((count) => count + steps);
    await until(() => done.every((count, at) => count >= wanted[at]));
  };
  try {
    for (const port of ports) {
      longest = 0;
      await more();
      if (!kill(port)) {
        return false;
      }
      await more();
      await until(() => answers(port));
      await more();
      console.log(`the longest write while that of ${port} died: ${Math.round(longest)} ms`);
    }
  } finally {
    stopped = true;
  }
  await writing;
  for (let at = 0; at < writers; at += 1) {
    for (let step = 0; step < done[at]; step += 1) {
      assert.equal(await read(`w${at}:${step}`), String(step));
    }
  }
  return true;
}

function kill(port) {
  try {
    execFileSync(process.env.PLUVIO_KILL, [String(port)]);
    return true;
  } catch {
    return false;
  }
}

function answers(port) {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1", () => socket.write("PING\r\n"));
    socket.once("data", (bytes) => {
      resolve(bytes[0] === "+".charCodeAt(0));
      socket.destroy();
    });
    socket.once("error", () => resolve(false));
    socket.once("close", () => resolve(false));
  });
}
