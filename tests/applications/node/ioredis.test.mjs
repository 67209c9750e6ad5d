// Scenarios with ioredis: what its users do with strings, keys, transactions, scripts and clusters,
// and what two libraries over it do.
import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, beforeEach, test } from "node:test";
import Redis from "ioredis";
import Redlock from "redlock";
import { RateLimiterRedis } from "rate-limiter-flexible";
import { writeWhileServersDie } from "./servers_die.mjs";

const url = process.env.PLUVIO_URL;
let redis;

before(() => {
  redis = new Redis(url);
});
beforeEach(() => redis.flushall());
after(() => redis.quit());

test("it finds the server ready, and commands wait for that", async () => {
  const lazy = new Redis(url, { lazyConnect: true, connectionName: "me", db: 3 });
  await lazy.connect();
  assert.equal(lazy.status, "ready");
  assert.equal(await lazy.client("GETNAME"), "me");
  await lazy.set("k", "v");
  assert.equal(await redis.exists("k"), 0);
  await lazy.quit();
});

test("values expire, are conditional, and may be any bytes", async () => {
  assert.equal(await redis.set("k", "v", "EX", 100, "NX"), "OK");
  assert.equal(await redis.set("k", "w", "NX"), null);
  assert.equal(await redis.set("k", "w", "XX", "GET", "KEEPTTL"), "v");
  assert.ok((await redis.ttl("k")) > 90);
  assert.equal(await redis.expire("k", 50, "GT"), 0);
  assert.equal(await redis.persist("k"), 1);
  const bytes = Buffer.from([0, 255, 13, 10, 36]);
  await redis.setBuffer("b", bytes);
  assert.deepEqual(await redis.getBuffer("b"), bytes);
  assert.equal(await redis.getdel("b"), bytes.toString());
  await redis.set("soon", "v", "PX", 30);
  while ((await redis.get("soon")) !== null);
  assert.equal(await redis.pttl("soon"), -2);
});

test("numbers and parts of values", async () => {
  assert.equal(await redis.incrby("n", 5), 5);
  assert.equal(await redis.incrbyfloat("n", 0.5), "5.5");
  await assert.rejects(redis.incr("n"), /not an integer/);
  assert.equal(await redis.append("t", "Hello"), 5);
  assert.equal(await redis.setrange("t", 5, " you"), 9);
  assert.equal(await redis.getrange("t", -3, -1), "you");
  assert.equal(await redis.setbit("bits", 7, 1), 0);
  assert.equal(await redis.bitcount("bits"), 1);
});

test("a pipeline gives each error at its place", async () => {
  const pipeline = redis.pipeline().set("a", 1).incr("a").incrby("a", "x").get("a");
  const [set, incr, wrong, get] = await pipeline.exec();
  assert.deepEqual([set, incr, get], [[null, "OK"], [null, 2], [null, "2"]]);
  assert.match(wrong[0].message, /not an integer/);
});

test("a pipeline of 10000 commands is answered in order", async () => {
  const pipeline = redis.pipeline();
  for (let i = 0; i < 10000; i += 1) {
    pipeline.set(`k${i % 100}`, i).get(`k${i % 100}`);
  }
  const replies = await pipeline.exec();
  replies.forEach(([error, reply], at) => {
    assert.equal(error, null);
    assert.equal(reply, at % 2 === 0 ? "OK" : String((at - 1) / 2));
  });
});

test("commands that are sent together are joined by themselves", async () => {
  const joining = new Redis(url, { enableAutoPipelining: true });
  const keys = Array.from({ length: 200 }, (_, i) => `key${i}`);
  await Promise.all(keys.map((key) => joining.set(key, key)));
  assert.deepEqual(await Promise.all(keys.map((key) => joining.get(key))), keys);
  assert.deepEqual(await joining.mget(keys), keys);
  await joining.quit();
});

test("a transaction is done as a whole, or not at all", async () => {
  const replies = await redis.multi().set("a", 1).incr("a").mget("a", "b").exec();
  assert.deepEqual(replies, [[null, "OK"], [null, 2], [null, ["2", null]]]);
  await assert.rejects(redis.multi().set("a").exec(), /EXECABORT/);
  assert.equal(await redis.get("a"), "2");
});

test("a watched key that changes prevents the transaction", async () => {
  const other = new Redis(url);
  await redis.set("a", 1);
  await redis.watch("a");
  await other.set("a", 2);
  assert.equal(await redis.multi().set("a", 3).exec(), null);
  await redis.watch("a");
  assert.deepEqual(await redis.multi().set("a", 3).exec(), [[null, "OK"]]);
  await other.quit();
});

test("own commands are scripts", async () => {
  redis.defineCommand("cas", {
    numberOfKeys: 1,
    lua: `if redis.call('GET', KEYS[1]) == ARGV[1] then
            redis.call('SET', KEYS[1], ARGV[2]) return 1
          end return 0`,
  });
  await redis.set("k", "a");
  assert.equal(await redis.cas("k", "b", "c"), 0);
  assert.equal(await redis.cas("k", "a", "c"), 1);
  await redis.script("FLUSH");
  assert.equal(await redis.cas("k", "c", "d"), 1);
  const [[, one], [, two]] = await redis.pipeline().cas("k", "d", "e").get("k").exec();
  assert.deepEqual([one, two], [1, "e"]);
});

test("a scan gives every key", async () => {
  const pipeline = redis.pipeline();
  for (let i = 0; i < 1000; i += 1) {
    pipeline.set(`user:${i}`, i).set(`other:${i}`, i);
  }
  await pipeline.exec();
  const found = new Set();
  for await (const keys of redis.scanStream({ match: "user:*", count: 50, type: "string" })) {
    keys.forEach((key) => found.add(key));
  }
  assert.equal(found.size, 1000);
});

test("keys have a prefix everywhere, in scripts too", async () => {
  const prefixed = new Redis(url, { keyPrefix: "app:" });
  await prefixed.mset("a", 1, "b", 2);
  assert.deepEqual(await redis.mget("app:a", "app:b"), ["1", "2"]);
  assert.equal(await prefixed.eval("return redis.call('GET', KEYS[1])", 1, "a"), "1");
  await prefixed.quit();
});

test("it connects again after its connection was killed", async () => {
  const victim = new Redis(url, { retryStrategy: () => 1 });
  await victim.set("k", "v");
  const closed = once(victim, "close");
  assert.equal(await redis.client("KILL", "ID", await victim.client("ID")), 1);
  await closed;
  assert.equal(await victim.get("k"), "v");
  await victim.quit();
});

test("others are seen by MONITOR", async () => {
  const monitor = await redis.monitor();
  const told = once(monitor, "monitor");
  await redis.set("k", "v");
  assert.deepEqual((await told)[1], ["set", "k", "v"]);
  monitor.disconnect();
});

test("a cluster client finds the owner of each key", async () => {
  const cluster = new Redis.Cluster([{ host: "127.0.0.1", port: 7001 }]);
  await Promise.all(Array.from({ length: 300 }, (_, i) => cluster.set(`k${i}`, i)));
  const values = await Promise.all(Array.from({ length: 300 }, (_, i) => cluster.get(`k${i}`)));
  assert.deepEqual(values, Array.from({ length: 300 }, (_, i) => String(i)));
  const replies = await cluster.multi().set("{u}a", 1).incr("{u}a").mget("{u}a", "{u}b").exec();
  assert.deepEqual(replies, [[null, "OK"], [null, 2], [null, ["2", null]]]);
  await assert.rejects(cluster.mget("a", "b"), /CROSSSLOT|slot/);
  await cluster.quit();
});

test("a cluster client's writers see a delay when servers die", async (t) => {
  const cluster = new Redis.Cluster([{ host: "127.0.0.1", port: 7001 }]);
  const slots = await cluster.cluster("SLOTS");
  const ports = [...new Set(slots.map(([, , [, port]]) => port))];
  const write = (key, value) => cluster.set(key, value);
  if (!(await writeWhileServersDie(ports, write, (key) => cluster.get(key)))) {
    t.skip("it needs several servers of ours");
  }
  await cluster.quit();
});

test("redlock: one holds a lock, others wait or give up", async () => {
  const redlock = new Redlock([redis], { retryCount: 0 });
  const patient = new Redlock([redis], { retryCount: 500, retryDelay: 5, retryJitter: 5 });
  const lock = await redlock.acquire(["{door}1", "{door}2"], 5000);
  await assert.rejects(redlock.acquire(["{door}2"], 5000));
  const extended = await lock.extend(10000);
  assert.ok((await redis.pttl("{door}1")) > 5000);
  await extended.release();
  let inside = 0;
  const enter = async () => {
    const held = await patient.acquire(["door"], 5000);
    inside += 1;
    assert.equal(inside, 1);
    await redis.ping();
    inside -= 1;
    await held.release();
  };
  await Promise.all(Array.from({ length: 20 }, enter));
});

test("rate-limiter-flexible: exactly so many points are given", async () => {
  const limiter = new RateLimiterRedis({ storeClient: redis, points: 20, duration: 60 });
  const tries = Array.from({ length: 50 }, () => limiter.consume("someone"));
  const came = await Promise.allSettled(tries);
  assert.equal(came.filter(({ status }) => status === "fulfilled").length, 20);
  const left = await limiter.get("someone");
  assert.ok(left.remainingPoints <= 0 && left.msBeforeNext > 0);
  await limiter.delete("someone");
  assert.equal(await limiter.get("someone"), null);
});
