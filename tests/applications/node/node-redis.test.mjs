// Scenarios with node-redis: what its users do with strings, keys, transactions, scripts and
// clusters, and what two libraries over it do.
import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { RedisStore } from "connect-redis";
import { RateLimiterRedis } from "rate-limiter-flexible";
import { createClient, createClientPool, createCluster, defineScript, WatchError } from "redis";
import { writeWhileServersDie } from "./servers_die.mjs";

const url = process.env.PLUVIO_URL;
let client;

const connect = (options = {}) =>
  createClient({ url, ...options })
    .on("error", () => {})
    .connect();

before(async () => {
  client = await connect();
});
beforeEach(() => client.flushAll());
after(() => client.close());

for (const RESP of [2, 3]) {
  test(`RESP${RESP}: a connection has a name, a database and its library`, async () => {
    const named = await connect({ RESP, name: "me", database: 4 });
    assert.equal(await named.clientGetName(), "me");
    const info = await named.clientInfo();
    assert.equal(info.db, 4);
    assert.match(info.libName, /redis/);
    assert.equal(await named.get("none"), null);
    await named.close();
  });
}

test("values expire and are conditional", async () => {
  const until = Math.ceil(Date.now() / 1000) + 100;
  assert.equal(await client.set("k", "v", { expiration: { type: "EXAT", value: until } }), "OK");
  assert.equal(await client.expireTime("k"), until);
  assert.equal(await client.set("k", "w", { condition: "NX", GET: true }), "v");
  assert.equal(await client.getEx("k", { type: "PERSIST" }), "v");
  assert.equal(await client.ttl("k"), -1);
  await client.set("soon", "v", { expiration: { type: "PX", value: 30 } });
  while ((await client.get("soon")) !== null);
  assert.equal(await client.exists("soon"), 0);
});

test("keys are copied, renamed and looked through", async () => {
  await client.mSet({ a: "1", b: "2" });
  assert.deepEqual(await client.mGet(["a", "b", "c"]), ["1", "2", null]);
  assert.equal(await client.copy("a", "c"), 1);
  assert.equal(await client.rename("a", "d"), "OK");
  assert.equal(await client.renameNX("b", "c"), 0);
  const found = [];
  for await (const keys of client.scanIterator({ MATCH: "*", COUNT: 10 })) {
    found.push(...keys);
  }
  assert.deepEqual(found.sort(), ["b", "c", "d"]);
  assert.equal(await client.type("b"), "string");
  assert.equal(await client.dbSize(), 3);
});

test("commands of one tick are one pipeline", async () => {
  const numbers = await Promise.all(Array.from({ length: 5000 }, () => client.incr("n")));
  assert.deepEqual(numbers, Array.from({ length: 5000 }, (_, i) => i + 1));
});

test("a transaction is done as a whole, or not at all", async () => {
  assert.deepEqual(await client.multi().set("a", "1").incr("a").get("a").exec(), ["OK", 2, "2"]);
  const wrong = client.multi().set("a", "text").incr("a").execAsPipeline();
  await assert.rejects(wrong, /not an integer|commands? failed|errors/i);
});

test("a watched key that changes prevents the transaction", async () => {
  const other = await connect();
  await client.watch("a");
  await other.set("a", "2");
  await assert.rejects(client.multi().set("a", "3").exec(), WatchError);
  assert.equal(await client.get("a"), "2");
  await other.close();
});

test("a pool counts without losing a step", async () => {
  const pool = createClientPool({ url }, { minimum: 2, maximum: 8 });
  await pool.connect();
  const step = () =>
    pool.execute(async (one) => {
      for (;;) {
        await one.watch("count");
        const count = Number((await one.get("count")) ?? 0);
        try {
          await one.multi().set("count", count + 1).exec();
          return;
        } catch (error) {
          if (!(error instanceof WatchError)) throw error;
        }
      }
    });
  await Promise.all(Array.from({ length: 50 }, step));
  assert.equal(await pool.get("count"), "50");
  await pool.close();
});

test("scripts and functions", async () => {
  const add = defineScript({
    NUMBER_OF_KEYS: 1,
    SCRIPT: "return redis.call('INCRBY', KEYS[1], ARGV[1])",
    parseCommand(parser, key, by) {
      parser.pushKey(key);
      parser.push(String(by));
    },
    transformReply: undefined,
  });
  const scripted = await connect({ scripts: { add } });
  assert.equal(await scripted.add("n", 5), 5);
  await client.scriptFlush();
  assert.equal(await scripted.add("n", 5), 10);
  await scripted.close();
  const library = `#!lua name=mine
    redis.register_function('twice', function(keys) return redis.call('GET', keys[1]) * 2 end)`;
  assert.equal(await client.functionLoad(library, { REPLACE: true }), "mine");
  assert.equal(await client.fCall("twice", { keys: ["n"], arguments: [] }), 20);
  await client.functionDelete("mine");
});

test("it connects again after its connection was killed", async () => {
  const victim = await connect({ socket: { reconnectStrategy: 1 } });
  await victim.set("k", "v");
  const ready = new Promise((resolve) => victim.once("ready", resolve));
  await client.clientKill({ filter: "ID", id: await victim.clientId() });
  await ready;
  assert.equal(await victim.get("k"), "v");
  await victim.close();
});

test("INFO, CONFIG and MEMORY can be read", async () => {
  assert.match(await client.info("server"), /redis_version:/);
  assert.deepEqual(Object.keys(await client.configGet("save")), ["save"]);
  await client.set("k", "v".repeat(1000));
  assert.ok((await client.memoryUsage("k")) > 1000);
});

test("a cluster client finds the owner of each key", async () => {
  const cluster = createCluster({ rootNodes: [{ url: "redis://127.0.0.1:7001" }] });
  await cluster.connect();
  await Promise.all(Array.from({ length: 300 }, (_, i) => cluster.set(`k${i}`, String(i))));
  const values = await Promise.all(Array.from({ length: 300 }, (_, i) => cluster.get(`k${i}`)));
  assert.deepEqual(values, Array.from({ length: 300 }, (_, i) => String(i)));
  assert.deepEqual(await cluster.multi().set("{u}a", "1").incr("{u}a").exec(), ["OK", 2]);
  await cluster.close();
});

test("a cluster client's writers see a delay when servers die", async (t) => {
  const cluster = createCluster({ rootNodes: [{ url: "redis://127.0.0.1:7001" }] });
  await cluster.on("error", () => {}).connect();
  const ports = [...new Set(cluster.masters.map(({ port }) => port))];
  // The client gives up commands that are under way on a connection that ends.
  const repeated = async (command) => {
    for (;;) {
      try {
        return await command();
      } catch (error) {
        const what = `${error.constructor.name} ${error.code}`;
        assert.match(what, /Socket|Connect|Client|ECONN/, error);
      }
    }
  };
  const write = (key, value) => repeated(() => cluster.set(key, value));
  const read = (key) => repeated(() => cluster.get(key));
  if (!(await writeWhileServersDie(ports, write, read))) {
    t.skip("it needs several servers of ours");
  }
  await cluster.close();
});

test("connect-redis: sessions are kept, prolonged, listed and dropped", async () => {
  const store = new RedisStore({ client, prefix: "session:", ttl: 100 });
  const session = { cookie: { originalMaxAge: null }, user: "me" };
  await store.set("1", session);
  await store.set("2", session);
  assert.deepEqual(await store.get("1"), session);
  await client.expire("session:1", 10);
  await store.touch("1", session);
  assert.ok((await client.ttl("session:1")) > 10);
  assert.deepEqual((await store.ids()).sort(), ["1", "2"]);
  assert.equal(await store.length(), 2);
  await store.destroy("1");
  assert.ok(!(await store.get("1")));
  await store.clear();
  assert.equal(await store.length(), 0);
});

test("rate-limiter-flexible: exactly so many points are given", async () => {
  const options = { storeClient: client, useRedisPackage: true, points: 20, duration: 60 };
  const limiter = new RateLimiterRedis(options);
  const tries = Array.from({ length: 50 }, () => limiter.consume("someone"));
  const came = await Promise.allSettled(tries);
  assert.equal(came.filter(({ status }) => status === "fulfilled").length, 20);
});
