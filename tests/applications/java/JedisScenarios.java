package pluvio;

import static pluvio.Scenarios.CHANGE_IF_EQUAL;
import static pluvio.Scenarios.LIBRARY;
import static pluvio.Scenarios.check;
import static pluvio.Scenarios.equal;
import static pluvio.Scenarios.refused;
import static redis.clients.jedis.params.SetParams.setParams;

import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.JedisMonitor;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.Protocol.Command;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.args.ClientType;
import redis.clients.jedis.exceptions.JedisMovedDataException;
import redis.clients.jedis.params.ClientKillParams;
import redis.clients.jedis.params.GetExParams;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.util.JedisClusterCRC16;
import redis.clients.jedis.util.PrefixedKeyArgumentPreProcessor;

/** Scenarios with jedis: its pooled client, its connections, and its cluster clients. */
public final class JedisScenarios {
  private static final URI URL = URI.create(System.getenv("PLUVIO_URL"));
  private static final HostAndPort ONE = new HostAndPort("127.0.0.1", URL.getPort());
  private static final HostAndPort NODE = new HostAndPort("127.0.0.1", Scenarios.CLUSTER_PORT);

  private static RedisClient redis;
  private static RedisClusterClient cluster;

  public static void main(String[] args) throws Exception {
    redis = RedisClient.create(URL);
    cluster = RedisClusterClient.create(NODE);
    var scenarios = new Scenarios();
    onePort(scenarios);
    clusters(scenarios);
    deaths(scenarios);
    scenarios.run(() -> {
      redis.flushAll();
      cluster.flushAll();
    });
  }

  private static void onePort(Scenarios scenarios) {
    for (RedisProtocol protocol : RedisProtocol.values()) {
      scenarios.test(protocol + ": a connection has a name, a database and its library", () -> {
        var config = config().protocol(protocol).clientName("me").database(4).build();
        try (var jedis = new Jedis(ONE, config)) {
          equal(jedis.clientGetname(), "me");
          String info = jedis.clientInfo();
          check(info.contains("db=4") && info.contains("lib-name=jedis"), info);
          equal(jedis.get("none"), null);
          jedis.set("k", "v");
          equal(redis.exists("k"), false);
        }
      });
    }
    scenarios.test("values expire, are conditional, and may be any bytes", () -> {
      equal(redis.set("k", "v", setParams().ex(100).nx()), "OK");
      equal(redis.set("k", "w", setParams().nx()), null);
      equal(redis.setGet("k", "w", setParams().keepTtl()), "v");
      check(redis.ttl("k") > 90, "it expires");
      long until = System.currentTimeMillis() / 1000 + 100;
      redis.expireAt("k", until);
      equal(redis.expireTime("k"), until);
      equal(redis.getEx("k", GetExParams.getExParams().persist()), "w");
      equal(redis.ttl("k"), -1L);
      byte[] bytes = {0, -1, 13, 10, 36};
      redis.set("b".getBytes(), bytes);
      check(Arrays.equals(redis.get("b".getBytes()), bytes), "its bytes");
      equal(redis.getDel("k"), "w");
      redis.set("soon", "v", setParams().px(30));
      while (redis.get("soon") != null);
      equal(redis.pttl("soon"), -2L);
    });
    scenarios.test("numbers and parts of values", () -> {
      equal(redis.incrBy("n", 5), 5L);
      equal(redis.incrByFloat("n", 0.5), 5.5);
      refused("not an integer", () -> redis.incr("n"));
      equal(redis.append("t", "Hello"), 5L);
      equal(redis.setrange("t", 5, " you"), 9L);
      equal(redis.getrange("t", -3, -1), "you");
      equal(redis.setbit("bits", 7, true), false);
      equal(redis.bitcount("bits"), 1L);
      equal(redis.bitfield("bits", "INCRBY", "u8", "8", "3"), List.of(3L));
    });
    scenarios.test("a pipeline gives each error at its place", () -> {
      try (var pipeline = redis.pipelined()) {
        pipeline.set("a", "x");
        Response<Long> wrong = pipeline.incr("a");
        Response<String> get = pipeline.get("a");
        pipeline.sync();
        refused("not an integer", wrong::get);
        equal(get.get(), "x");
      }
    });
    scenarios.test("a pipeline of 10000 commands is answered in order", () -> {
      try (var pipeline = redis.pipelined()) {
        for (int i = 0; i < 10_000; i += 1) {
          pipeline.set("k" + i % 100, String.valueOf(i));
          pipeline.get("k" + i % 100);
        }
        List<Object> replies = pipeline.syncAndReturnAll();
        for (int i = 0; i < 10_000; i += 1) {
          equal(replies.get(2 * i), "OK");
          equal(replies.get(2 * i + 1), String.valueOf(i));
        }
      }
    });
    scenarios.test("a transaction is done as a whole, or not at all", () -> {
      try (var multi = redis.multi()) {
        multi.set("a", "1");
        multi.incr("a");
        multi.mget("a", "b");
        var wanted = new ArrayList<Object>(List.of("OK", 2L));
        wanted.add(Arrays.asList("2", null));
        equal(multi.exec(), wanted);
      }
      try (var multi = redis.multi()) {
        multi.set("a", "3");
        multi.discard();
      }
      try (var jedis = new Jedis(ONE)) {
        var multi = jedis.multi();
        multi.sendCommand(Command.SET, "a");
        refused("EXECABORT", multi::exec);
      }
      equal(redis.get("a"), "2");
    });
    scenarios.test("a watched key that changes prevents the transaction", () -> {
      redis.set("a", "1");
      try (var multi = redis.transaction(false)) {
        multi.watch("a");
        redis.set("a", "2");
        multi.multi();
        multi.set("a", "3");
        equal(multi.exec(), null);
        multi.watch("a");
        multi.multi();
        multi.set("a", "3");
        equal(multi.exec(), List.of("OK"));
      }
    });
    scenarios.test("a pool counts without losing a step", () -> {
      try (var pool = pool()) {
        Scenarios.together(8, at -> {
          for (int step = 0; step < 10; step += 1) {
            try (var jedis = pool.getResource()) {
              List<Object> done;
              do {
                jedis.watch("count");
                String count = jedis.get("count");
                var multi = jedis.multi();
                multi.set("count", String.valueOf(count == null ? 1 : Long.parseLong(count) + 1));
                done = multi.exec();
              } while (done == null);
            }
          }
        }).get();
      }
      equal(redis.get("count"), "80");
    });
    scenarios.test("a pool replaces a connection that was killed", () -> {
      var tested = new ConnectionPoolConfig();
      tested.setTestOnBorrow(true);
      tested.setMaxTotal(1);
      var config = config().clientName("victim").build();
      var building = RedisClient.builder().hostAndPort(ONE).clientConfig(config);
      try (var victim = building.poolConfig(tested).build(); var other = new Jedis(ONE)) {
        victim.set("k", "v");
        var id = victim.executeCommand(new CommandArguments(Command.CLIENT).add("ID"));
        equal(other.clientKill(ClientKillParams.clientKillParams().id(String.valueOf(id))), 1L);
        equal(victim.get("k"), "v");
      }
    });
    scenarios.test("scripts and functions", () -> {
      redis.set("k", "a");
      equal(redis.eval(CHANGE_IF_EQUAL, 1, "k", "b", "c"), 0L);
      equal(redis.eval(CHANGE_IF_EQUAL, List.of("k"), List.of("a", "c")), 1L);
      String hash = redis.scriptLoad(CHANGE_IF_EQUAL);
      equal(redis.scriptExists(List.of(hash)), List.of(true));
      equal(redis.evalsha(hash, 1, "k", "c", "d"), 1L);
      redis.scriptFlush();
      refused("NOSCRIPT", () -> redis.evalsha(hash, 1, "k", "d", "e"));
      equal(redis.functionLoadReplace(LIBRARY), "mine");
      redis.set("n", "21");
      equal(redis.fcall("twice", List.of("n"), List.of()), 42L);
      equal(redis.functionList().get(0).getLibraryName(), "mine");
      equal(redis.functionDelete("mine"), "OK");
    });
    scenarios.test("a scan gives every key", () -> {
      try (var pipeline = redis.pipelined()) {
        for (int i = 0; i < 1000; i += 1) {
          pipeline.set("user:" + i, "v");
          pipeline.set("other:" + i, "v");
        }
      }
      var found = new ArrayList<String>();
      String cursor = ScanParams.SCAN_POINTER_START;
      do {
        var page = redis.scan(cursor, new ScanParams().match("user:*").count(50), "string");
        found.addAll(page.getResult());
        cursor = page.getCursor();
      } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
      equal(found.size(), 1000);
      equal(new HashSet<>(found).size(), 1000);
      equal(redis.dbSize(), 2000L);
    });
    scenarios.test("keys have a prefix everywhere, in scripts too", () -> {
      var prefix = new PrefixedKeyArgumentPreProcessor("app:");
      var config = config().commandKeyArgumentPreProcessor(prefix).build();
      var building = RedisClient.builder().hostAndPort(ONE).clientConfig(config);
      try (var prefixed = building.build()) {
        prefixed.mset("a", "1", "b", "2");
        equal(redis.mget("app:a", "app:b"), List.of("1", "2"));
        String get = "return redis.call('GET', KEYS[1])";
        equal(prefixed.eval(get, List.of("a"), List.of()), "1");
      }
    });
    scenarios.test("users have passwords and rights", () -> users(List.of(ONE)));
    scenarios.test("others are seen by MONITOR", () -> {
      var told = new CompletableFuture<String>();
      try (var jedis = new Jedis(ONE)) {
        var monitoring = Scenarios.together(1, at -> jedis.monitor(new JedisMonitor() {
          @Override
          public void onCommand(String command) {
            if (command.contains("\"SET\"")) {
              told.complete(command);
            }
          }
        }));
        while (!told.isDone() && !monitoring.isDone()) {
          redis.set("k", "v");
        }
        check(told.get().contains("\"k\" \"v\""), told.get());
      }
    });
  }

  /** A user, made at each of these servers: others know it within a second. */
  private static void users(Collection<HostAndPort> servers) {
    for (HostAndPort server : servers) {
      try (var admin = new Jedis(server)) {
        admin.aclSetUser("ann", "reset", "on", ">secret", "~ann:*", "+@all", "-@dangerous");
      }
    }
    HostAndPort where = servers.iterator().next();
    var config = config().user("ann").password("secret").build();
    try (var jedis = new Jedis(where, config)) {
      equal(jedis.aclWhoAmI(), "ann");
    }
    if (where.equals(ONE)) {
      var building = RedisClient.builder().hostAndPort(where).clientConfig(config);
      try (var client = building.build()) {
        rights(client);
      }
    } else {
      // It learns the slots with CLUSTER, which is not among the dangerous commands.
      var building = RedisClusterClient.builder().nodes(Set.of(where)).clientConfig(config);
      try (var client = building.build()) {
        rights(client);
      }
    }
    var wrong = config().user("ann").password("guess").build();
    refused("WRONGPASS", () -> new Jedis(where, wrong));
    for (HostAndPort server : servers) {
      try (var admin = new Jedis(server)) {
        admin.aclDelUser("ann");
      }
    }
  }

  private static void rights(UnifiedJedis client) {
    for (int i = 0; i < 100; i += 1) {
      client.set("ann:" + i, "v");
    }
    equal(client.get("ann:7"), "v");
    refused("NOPERM", () -> client.get("other"));
    refused("NOPERM", client::flushAll);
  }

  private static void clusters(Scenarios scenarios) {
    scenarios.test("cluster: the client knows the nodes and the owner of each slot", () -> {
      try (var jedis = new Jedis(NODE)) {
        var named = new HashSet<String>();
        for (String line : jedis.clusterNodes().split("\n")) {
          named.add(line.split(" ")[1].split("@")[0]);
        }
        equal(cluster.getClusterNodes().keySet(), named);
        long slots = 0;
        for (var shard : jedis.clusterShards()) {
          for (var range : shard.getSlots()) {
            slots += range.get(1) - range.get(0) + 1;
          }
        }
        equal(slots, 16384L);
        equal(jedis.clusterKeySlot("{u}a"), (long) JedisClusterCRC16.getSlot("u"));
        check(jedis.clusterInfo().contains("cluster_state:ok"), "the state");
      }
    });
    scenarios.test("cluster: eight threads go straight to the owners of 8000 keys", () -> {
      cluster.refreshClusterTopology();
      long moved = moved();
      writeAndRead(cluster);
      equal(moved(), moved);
      equal(cluster.dbSize(), 8000L);
    });
    scenarios.test("cluster: the older client JedisCluster does the same", () -> older());
    scenarios.test("cluster: it learns from MOVED where a key is", () -> {
      for (var node : cluster.getClusterNodes().keySet()) {
        try (var jedis = new Jedis(HostAndPort.from(node))) {
          for (int i = 0; i < 50; i += 1) {
            owned(jedis, "k" + i);
          }
        }
      }
    });
    scenarios.test("cluster: keys with one tag are together, others are refused or parted", () -> {
      equal(cluster.mset("{u}a", "1", "{u}b", "2"), "OK");
      equal(cluster.mget("{u}a", "{u}b"), List.of("1", "2"));
      equal(cluster.rename("{u}a", "{u}c"), "OK");
      equal(cluster.copy("{u}b", "{u}d", false), true);
      equal(cluster.del("{u}b", "{u}c", "{u}d"), 3L);
      try (var connection = cluster.getConnectionFromSlot(JedisClusterCRC16.getSlot("a"))) {
        connection.sendCommand(Command.MGET, "a", "b");
        refused("CROSSSLOT", connection::getOne);
      }
      equal(cluster.mset("a", "1", "b", "2", "c", "3"), "OK");
      equal(cluster.mget("a", "b", "none", "c"), Arrays.asList("1", "2", null, "3"));
      equal(cluster.exists("a", "b", "none"), 2L);
      equal(cluster.unlink("a", "b", "c"), 3L);
    });
    scenarios.test("cluster: a transaction in one slot, with and without a change", () -> {
      try (var connection = cluster.getConnectionFromSlot(JedisClusterCRC16.getSlot("u"))) {
        var multi = new Transaction(connection, false);
        multi.watch("{u}a");
        multi.multi();
        multi.set("{u}a", "1");
        multi.incr("{u}a");
        equal(multi.exec(), List.of("OK", 2L));
        multi.watch("{u}a");
        cluster.set("{u}a", "5");
        multi.multi();
        multi.set("{u}a", "6");
        equal(multi.exec(), null);
      }
      equal(cluster.get("{u}a"), "5");
    });
    scenarios.test("cluster: a pipeline of 10000 commands to all nodes", () -> {
      cluster.refreshClusterTopology();
      long moved = moved();
      var replies = new ArrayList<Response<String>>();
      try (var pipeline = cluster.pipelined()) {
        for (int i = 0; i < 5000; i += 1) {
          pipeline.set("k" + i, String.valueOf(i));
          replies.add(pipeline.get("k" + i));
        }
      }
      for (int i = 0; i < 5000; i += 1) {
        equal(replies.get(i).get(), String.valueOf(i));
      }
      equal(moved(), moved);
    });
    scenarios.test("cluster: scripts and functions run at the owners", () -> {
      String add = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
      equal(cluster.eval(add, 1, "n", "5"), 5L);
      String hash = cluster.scriptLoad(add, "m");
      for (int i = 0; i < 100; i += 1) {
        cluster.scriptLoad(add, "n" + i);
        equal(cluster.evalsha(hash, 1, "n" + i, "2"), 2L);
      }
      equal(cluster.scriptLoad(add), hash);
      equal(cluster.functionLoadReplace(LIBRARY), "mine");
      for (int i = 0; i < 100; i += 1) {
        equal(cluster.fcall("twice", List.of("n" + i), List.of()), 4L);
      }
      cluster.functionFlush();
    });
    scenarios.test("cluster: a library is loaded and deleted by all nodes", () -> {
      equal(cluster.functionLoad(LIBRARY), "mine");
      equal(cluster.functionDelete("mine"), "OK");
    });
    scenarios.test("cluster: values expire", () -> {
      for (int i = 0; i < 100; i += 1) {
        cluster.set("k" + i, "v", setParams().px(30));
        cluster.set("l" + i, "v", setParams().ex(100));
      }
      for (int i = 0; i < 100; i += 1) {
        while (cluster.get("k" + i) != null);
        check(cluster.ttl("l" + i) > 90, "it expires later");
      }
    });
    scenarios.test("cluster: a scan of all nodes gives every key once", () -> {
      // A pipeline does not follow MOVED, and FLUSHALL may have given slots to other nodes.
      cluster.refreshClusterTopology();
      try (var pipeline = cluster.pipelined()) {
        for (int i = 0; i < 3000; i += 1) {
          pipeline.set("user:" + i, "v");
          pipeline.set("other:" + i, "v");
        }
      }
      var found = new ArrayList<String>();
      var pages = cluster.scanIteration(100, "user:*");
      while (!pages.isIterationCompleted()) {
        found.addAll(pages.nextBatchList());
      }
      equal(found.size(), 3000);
      equal(new HashSet<>(found).size(), 3000);
      equal(cluster.keys("other:*").size(), 3000);
    });
    scenarios.test("cluster: users have passwords and rights", () ->
        users(cluster.getClusterNodes().keySet().stream().map(HostAndPort::from).toList()));
    scenarios.test("cluster: killed connections are replaced", () -> {
      for (int i = 0; i < 100; i += 1) {
        cluster.set("k" + i, String.valueOf(i));
      }
      for (var node : cluster.getClusterNodes().keySet()) {
        try (var jedis = new Jedis(HostAndPort.from(node))) {
          jedis.clientKill(ClientKillParams.clientKillParams()
              .skipMe(ClientKillParams.SkipMe.YES)
              .type(ClientType.NORMAL));
        }
      }
      for (int i = 0; i < 100; i += 1) {
        equal(cluster.get("k" + i), String.valueOf(i));
      }
    });
  }

  private static void deaths(Scenarios scenarios) {
    scenarios.test("servers die: a client of another one sees a delay", () -> {
      var others = ports(ONE.getPort()).stream().skip(1).toList();
      Scenarios.writeWhileServersDie(others, redis::set, redis::get);
    });
    scenarios.test("servers die: a cluster client sees a delay", () -> {
      var ports = ports(Scenarios.CLUSTER_PORT);
      var building = RedisClusterClient.builder().nodes(Set.of(NODE));
      try (var client = building.topologyRefreshPeriod(Duration.ofSeconds(1)).build()) {
        Scenarios.writeWhileServersDie(ports, client::set, client::get);
      }
      // The client of all scenarios has slept meanwhile: what it knows is old.
      writeAndRead(cluster);
      cluster.refreshClusterTopology();
      long moved = moved();
      writeAndRead(cluster);
      equal(moved(), moved);
    });
  }

  private static List<Integer> ports(int first) throws Exception {
    return Scenarios.ports(first, cluster.getClusterNodes().size());
  }

  private static void writeAndRead(UnifiedJedis client) throws Exception {
    Scenarios.together(8, at -> {
      for (int i = 0; i < 1000; i += 1) {
        equal(client.set("k" + at + ":" + i, String.valueOf(i)), "OK");
      }
      for (int i = 0; i < 1000; i += 1) {
        equal(client.get("k" + at + ":" + i), String.valueOf(i));
      }
    }).get();
  }

  @SuppressWarnings("deprecation")
  private static void older() throws Exception {
    try (var client = new JedisCluster(NODE)) {
      long moved = moved();
      writeAndRead(client);
      equal(moved(), moved);
    }
  }

  /** Reads a key at a node: it is there, or the node names the one where it is. */
  private static void owned(Jedis jedis, String key) {
    try {
      jedis.set(key, "v");
    } catch (JedisMovedDataException moved) {
      try (var owner = new Jedis(moved.getTargetNode())) {
        equal(owner.set(key, "v"), "OK");
      }
    }
    equal(cluster.get(key), "v");
  }

  /** How many commands all nodes together sent elsewhere. */
  private static long moved() {
    long moved = 0;
    for (var node : cluster.getClusterNodes().keySet()) {
      try (var jedis = new Jedis(HostAndPort.from(node))) {
        moved += Scenarios.counted(jedis.info("errorstats"), "errorstat_MOVED");
      }
    }
    return moved;
  }

  @SuppressWarnings("deprecation")
  private static JedisPool pool() {
    return new JedisPool(URL);
  }

  private static DefaultJedisClientConfig.Builder config() {
    return DefaultJedisClientConfig.builder();
  }
}
