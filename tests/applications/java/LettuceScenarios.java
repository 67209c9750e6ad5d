package pluvio;

import static pluvio.Scenarios.CHANGE_IF_EQUAL;
import static pluvio.Scenarios.LIBRARY;
import static pluvio.Scenarios.check;
import static pluvio.Scenarios.equal;
import static pluvio.Scenarios.refused;

import io.lettuce.core.AclCategory;
import io.lettuce.core.AclSetuserArgs;
import io.lettuce.core.BitFieldArgs;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.CopyArgs;
import io.lettuce.core.FlushMode;
import io.lettuce.core.GetExArgs;
import io.lettuce.core.KeyScanArgs;
import io.lettuce.core.KillArgs;
import io.lettuce.core.LettuceFutures;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.SetArgs;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.api.sync.RedisAdvancedClusterCommands;
import io.lettuce.core.cluster.api.sync.RedisClusterCommands;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.StatusOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.CommandType;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.support.ConnectionPoolSupport;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import reactor.core.publisher.Flux;

/** Scenarios with lettuce: connections that threads share, pools, and the cluster client. */
public final class LettuceScenarios {
  private static final RedisURI ONE = RedisURI.create(System.getenv("PLUVIO_URL"));
  private static final RedisURI NODE = RedisURI.create("127.0.0.1", Scenarios.CLUSTER_PORT);

  private static RedisClient client;
  private static StatefulRedisConnection<String, String> connection;
  private static RedisCommands<String, String> redis;
  private static RedisClusterClient nodes;
  private static StatefulRedisClusterConnection<String, String> shared;
  private static RedisAdvancedClusterCommands<String, String> cluster;

  public static void main(String[] args) throws Exception {
    client = RedisClient.create(ONE);
    connection = client.connect();
    redis = connection.sync();
    nodes = RedisClusterClient.create(NODE);
    shared = nodes.connect();
    cluster = shared.sync();
    var scenarios = new Scenarios();
    onePort(scenarios);
    clusters(scenarios);
    deaths(scenarios);
    scenarios.run(() -> {
      redis.flushall();
      cluster.flushall();
    });
  }

  private static void onePort(Scenarios scenarios) {
    for (ProtocolVersion protocol : ProtocolVersion.values()) {
      scenarios.test(protocol + ": a connection has a name, a database and its library", () -> {
        var uri = RedisURI.Builder.redis("127.0.0.1", ONE.getPort());
        try (var named = RedisClient.create(uri.withClientName("me").withDatabase(4).build())) {
          named.setOptions(ClientOptions.builder().protocolVersion(protocol).build());
          var commands = named.connect().sync();
          equal(commands.clientGetname(), "me");
          String info = commands.clientInfo();
          check(info.contains("db=4") && info.contains("lib-name=Lettuce"), info);
          equal(commands.get("none"), null);
          commands.set("k", "v");
          equal(redis.exists("k"), 0L);
        }
      });
    }
    scenarios.test("values expire, are conditional, and may be any bytes", () -> {
      equal(redis.set("k", "v", SetArgs.Builder.ex(100).nx()), "OK");
      equal(redis.set("k", "w", SetArgs.Builder.nx()), null);
      equal(redis.setGet("k", "w", SetArgs.Builder.keepttl()), "v");
      check(redis.ttl("k") > 90, "it expires");
      long until = System.currentTimeMillis() / 1000 + 100;
      equal(redis.expireat("k", until), true);
      equal(redis.expiretime("k"), until);
      equal(redis.getex("k", GetExArgs.Builder.persist()), "w");
      equal(redis.ttl("k"), -1L);
      byte[] bytes = {0, -1, 13, 10, 36};
      try (var raw = client.connect(ByteArrayCodec.INSTANCE)) {
        raw.sync().set(bytes, bytes);
        check(Arrays.equals(raw.sync().get(bytes), bytes), "its bytes");
      }
      equal(redis.getdel("k"), "w");
      redis.set("soon", "v", SetArgs.Builder.px(30));
      while (redis.get("soon") != null);
      equal(redis.pttl("soon"), -2L);
    });
    scenarios.test("numbers and parts of values", () -> {
      equal(redis.incrby("n", 5), 5L);
      equal(redis.incrbyfloat("n", 0.5), 5.5);
      refused("not an integer", () -> redis.incr("n"));
      equal(redis.append("t", "Hello"), 5L);
      equal(redis.setrange("t", 5, " you"), 9L);
      equal(redis.getrange("t", -3, -1), "you");
      equal(redis.setbit("bits", 7, 1), 0L);
      equal(redis.bitcount("bits"), 1L);
      var add = BitFieldArgs.Builder.incrBy(BitFieldArgs.unsigned(8), 8, 3);
      equal(redis.bitfield("bits", add), List.of(3L));
    });
    scenarios.test("commands that are flushed together give each error at its place", () -> {
      try (var own = client.connect()) {
        own.setAutoFlushCommands(false);
        var set = own.async().set("a", "x");
        var wrong = own.async().incr("a");
        var get = own.async().get("a");
        own.flushCommands();
        equal(set.get(), "OK");
        refused("not an integer", wrong::get);
        equal(get.get(), "x");
      }
    });
    scenarios.test("20000 commands that are sent at once are answered in order", () -> {
      var async = connection.async();
      var replies = new ArrayList<RedisFuture<String>>();
      for (int i = 0; i < 10_000; i += 1) {
        async.set("k" + i % 100, String.valueOf(i));
        replies.add(async.get("k" + i % 100));
      }
      for (int i = 0; i < 10_000; i += 1) {
        equal(replies.get(i).get(), String.valueOf(i));
      }
    });
    scenarios.test("reactive commands", () -> {
      var reactive = connection.reactive();
      var sets = Flux.range(0, 1000).flatMap(i -> reactive.set("k" + i, String.valueOf(i)));
      equal(sets.count().block(), 1000L);
      var gets = Flux.range(0, 1000).flatMapSequential(i -> reactive.get("k" + i));
      var read = gets.collectList().block();
      for (int i = 0; i < 1000; i += 1) {
        equal(read.get(i), String.valueOf(i));
      }
    });
    scenarios.test("a transaction is done as a whole, or not at all", () -> {
      try (var own = client.connect()) {
        var commands = own.sync();
        commands.multi();
        commands.set("a", "1");
        commands.incr("a");
        commands.get("b");
        equal(commands.exec().stream().toList(), Arrays.asList("OK", 2L, null));
        commands.multi();
        commands.set("a", "3");
        equal(commands.discard(), "OK");
        commands.multi();
        var one = new CommandArgs<String, String>(StringCodec.UTF8).addKey("a");
        own.async().dispatch(CommandType.SET, new StatusOutput<>(StringCodec.UTF8), one);
        refused("EXECABORT", commands::exec);
        equal(commands.get("a"), "2");
      }
    });
    scenarios.test("a watched key that changes prevents the transaction", () -> {
      try (var own = client.connect()) {
        watched(own.sync(), redis, "a");
      }
    });
    scenarios.test("a pool counts without losing a step", () -> {
      var config = new GenericObjectPoolConfig<StatefulRedisConnection<String, String>>();
      try (var pool = ConnectionPoolSupport.createGenericObjectPool(client::connect, config)) {
        Scenarios.together(8, at -> {
          for (int step = 0; step < 10; step += 1) {
            try (var own = pool.borrowObject()) {
              var commands = own.sync();
              do {
                commands.watch("count");
                String count = commands.get("count");
                commands.multi();
                long next = count == null ? 1 : Long.parseLong(count) + 1;
                commands.set("count", String.valueOf(next));
              } while (commands.exec().wasDiscarded());
            }
          }
        }).get();
      }
      equal(redis.get("count"), "80");
    });
    scenarios.test("it connects again after its connection was killed", () -> {
      try (var victim = client.connect(); var other = client.connect()) {
        var commands = victim.sync();
        commands.set("k", "v");
        long id = commands.clientId();
        equal(other.sync().clientKill(KillArgs.Builder.id(id)), 1L);
        equal(commands.get("k"), "v");
        check(commands.clientId() != id, "it is another connection");
      }
    });
    scenarios.test("scripts and functions", () -> {
      String[] keys = {"k"};
      var number = ScriptOutputType.INTEGER;
      redis.set("k", "a");
      equal(redis.eval(CHANGE_IF_EQUAL, number, keys, "b", "c"), 0L);
      equal(redis.eval(CHANGE_IF_EQUAL, number, keys, "a", "c"), 1L);
      String hash = redis.scriptLoad(CHANGE_IF_EQUAL);
      equal(hash, redis.digest(CHANGE_IF_EQUAL));
      equal(redis.scriptExists(hash), List.of(true));
      equal(redis.evalsha(hash, number, keys, "c", "d"), 1L);
      redis.scriptFlush();
      refused("NOSCRIPT", () -> redis.evalsha(hash, number, keys, "d", "e"));
      equal(redis.functionLoad(LIBRARY, true), "mine");
      redis.set("n", "21");
      equal(redis.fcall("twice", number, "n"), 42L);
      equal(redis.functionList().get(0).get("library_name"), "mine");
      redis.functionFlush(FlushMode.SYNC);
    });
    scenarios.test("a scan gives every key", () -> {
      var values = new TreeMap<String, String>();
      for (int i = 0; i < 1000; i += 1) {
        values.put("user:" + i, "v");
        values.put("other:" + i, "v");
      }
      redis.mset(values);
      var args = KeyScanArgs.Builder.matches("user:*").limit(50);
      var found = ScanIterator.scan(redis, args).stream().toList();
      equal(found.size(), 1000);
      equal(new HashSet<>(found).size(), 1000);
      equal(redis.dbsize(), 2000L);
    });
    scenarios.test("users have passwords and rights", () -> {
      var uri = RedisURI.Builder.redis("127.0.0.1", ONE.getPort());
      ann();
      uri.withAuthentication("ann", "secret");
      try (var own = RedisClient.create(uri.build())) {
        rights(own.connect().sync());
      }
      uri.withAuthentication("ann", "guess");
      try (var own = RedisClient.create(uri.build())) {
        refused("WRONGPASS", own::connect);
      }
      equal(redis.aclDeluser("ann"), 1L);
    });
  }

  private static void watched(
      RedisCommands<String, String> own, RedisClusterCommands<String, String> other, String key) {
    own.set(key, "1");
    own.watch(key);
    other.set(key, "2");
    own.multi();
    own.set(key, "3");
    check(own.exec().wasDiscarded(), "it is not done");
    own.watch(key);
    own.multi();
    own.set(key, "3");
    own.incr(key);
    equal(own.exec().stream().toList(), List.of("OK", 4L));
    equal(other.get(key), "4");
  }

  /** Makes a user, at each node. */
  private static void ann() {
    var rules = AclSetuserArgs.Builder.on().addPassword("secret").keyPattern("ann:*");
    rules.addCategory(AclCategory.CONNECTION);
    rules.addCategory(AclCategory.STRING);
    rules.addCommand(CommandType.CLUSTER);
    redis.aclSetuser("ann", rules);
    for (var node : nodes.getPartitions()) {
      shared.getConnection(node.getNodeId()).sync().aclSetuser("ann", rules);
    }
  }

  private static void rights(RedisClusterCommands<String, String> commands) {
    for (int i = 0; i < 100; i += 1) {
      commands.set("ann:" + i, "v");
    }
    equal(commands.get("ann:7"), "v");
    refused("NOPERM", () -> commands.get("other"));
    refused("NOPERM", commands::flushall);
  }

  private static void clusters(Scenarios scenarios) {
    scenarios.test("cluster: the client knows the nodes and the owner of each slot", () -> {
      nodes.refreshPartitions();
      var named = new HashSet<String>();
      for (String line : cluster.clusterNodes().split("\n")) {
        named.add(line.split(" ")[0]);
      }
      var known = new HashSet<String>();
      for (var node : nodes.getPartitions()) {
        known.add(node.getNodeId());
      }
      equal(known, named);
      for (int slot = 0; slot < SlotHash.SLOT_COUNT; slot += 1) {
        check(nodes.getPartitions().getPartitionBySlot(slot) != null, "an owner of " + slot);
      }
      equal(cluster.clusterKeyslot("{u}a"), (long) SlotHash.getSlot("u"));
      check(cluster.clusterInfo().contains("cluster_state:ok"), "the state");
      check(!cluster.clusterShards().isEmpty(), "shards");
      check(!cluster.clusterSlots().isEmpty(), "slots");
    });
    scenarios.test("cluster: eight threads go straight to the owners of 8000 keys", () -> {
      nodes.refreshPartitions();
      long moved = moved();
      writeAndRead(cluster);
      equal(moved(), moved);
      equal(cluster.dbsize(), 8000L);
    });
    scenarios.test("cluster: it learns from MOVED where a key is", () -> {
      for (var node : nodes.getPartitions()) {
        // It asks this node for every key, until it is told of others.
        var uri = node.getUri();
        try (var own = client.connect(uri)) {
          for (int i = 0; i < 50; i += 1) {
            try {
              own.sync().set("k" + i, "v");
            } catch (RedisCommandExecutionException moved) {
              String owner = moved.getMessage().split(" ")[2];
              try (var there = client.connect(RedisURI.create("redis://" + owner))) {
                equal(there.sync().set("k" + i, "v"), "OK");
              }
            }
            equal(cluster.get("k" + i), "v");
          }
        }
      }
    });
    scenarios.test("cluster: keys with one tag are together, others are refused or parted", () -> {
      equal(cluster.mset(Map.of("{u}a", "1", "{u}b", "2")), "OK");
      equal(cluster.mget("{u}a", "{u}b").get(1).getValue(), "2");
      equal(cluster.rename("{u}a", "{u}c"), "OK");
      equal(cluster.copy("{u}b", "{u}d", CopyArgs.Builder.replace(false)), true);
      equal(cluster.del("{u}b", "{u}c", "{u}d"), 3L);
      refused("CROSSSLOT", () -> own("a").mget("a", "b"));
      equal(cluster.mset(Map.of("a", "1", "b", "2", "c", "3")), "OK");
      equal(cluster.mget("a", "b", "none", "c").stream().filter(v -> v.hasValue()).count(), 3L);
      equal(cluster.exists("a", "b", "none"), 2L);
      equal(cluster.unlink("a", "b", "c"), 3L);
    });
    scenarios.test("cluster: a transaction in one slot, with and without a change", () ->
        watched(own("{u}a"), cluster, "{u}a"));
    scenarios.test("cluster: 10000 commands at once to all nodes", () -> {
      nodes.refreshPartitions();
      long moved = moved();
      var async = shared.async();
      var replies = new ArrayList<RedisFuture<String>>();
      for (int i = 0; i < 5000; i += 1) {
        async.set("k" + i, String.valueOf(i));
        replies.add(async.get("k" + i));
      }
      check(
          LettuceFutures.awaitAll(
              60, TimeUnit.SECONDS, replies.toArray(RedisFuture[]::new)),
          "all replies");
      for (int i = 0; i < 5000; i += 1) {
        equal(replies.get(i).get(), String.valueOf(i));
      }
      equal(moved(), moved);
    });
    scenarios.test("cluster: scripts and functions run at the owners", () -> {
      String add = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
      var number = ScriptOutputType.INTEGER;
      equal(cluster.eval(add, number, new String[] {"n"}, "5"), 5L);
      String hash = cluster.scriptLoad(add);
      for (int i = 0; i < 100; i += 1) {
        equal(cluster.evalsha(hash, number, new String[] {"n" + i}, "2"), 2L);
      }
      cluster.functionLoad(LIBRARY, true);
      for (int i = 0; i < 100; i += 1) {
        equal(cluster.fcall("twice", number, "n" + i), 4L);
      }
      cluster.functionFlush(FlushMode.SYNC);
    });
    scenarios.test("cluster: a library is loaded by all nodes", () -> {
      equal(cluster.functionLoad(LIBRARY), "mine");
      cluster.functionFlush(FlushMode.SYNC);
    });
    scenarios.test("cluster: values expire", () -> {
      for (int i = 0; i < 100; i += 1) {
        cluster.set("k" + i, "v", SetArgs.Builder.px(30));
        cluster.set("l" + i, "v", SetArgs.Builder.ex(100));
      }
      for (int i = 0; i < 100; i += 1) {
        while (cluster.get("k" + i) != null);
        check(cluster.ttl("l" + i) > 90, "it expires later");
      }
    });
    scenarios.test("cluster: a scan of all nodes gives every key once", () -> {
      var values = new TreeMap<String, String>();
      for (int i = 0; i < 3000; i += 1) {
        values.put("user:" + i, "v");
        values.put("other:" + i, "v");
      }
      cluster.mset(values);
      var args = ScanArgs.Builder.matches("user:*").limit(100);
      var found = ScanIterator.scan(cluster, args).stream().toList();
      equal(found.size(), 3000);
      equal(new HashSet<>(found).size(), 3000);
      equal(cluster.keys("other:*").size(), 3000);
      check(cluster.randomkey() != null, "a key");
    });
    scenarios.test("cluster: users have passwords and rights", () -> {
      ann();
      var uri = RedisURI.Builder.redis("127.0.0.1", Scenarios.CLUSTER_PORT);
      uri.withAuthentication("ann", "secret");
      try (var own = RedisClusterClient.create(uri.build())) {
        rights(own.connect().sync());
      }
      uri.withAuthentication("ann", "guess");
      try (var own = RedisClusterClient.create(uri.build())) {
        refused("WRONGPASS|Unable to connect|Cannot retrieve", own::connect);
      }
      for (var node : nodes.getPartitions()) {
        shared.getConnection(node.getNodeId()).sync().aclDeluser("ann");
      }
      redis.aclDeluser("ann");
    });
    scenarios.test("cluster: it connects again after connections were killed", () -> {
      for (int i = 0; i < 100; i += 1) {
        cluster.set("k" + i, String.valueOf(i));
      }
      for (var node : nodes.getPartitions()) {
        try (var own = client.connect(node.getUri())) {
          own.sync().clientKill(KillArgs.Builder.typeNormal().skipme());
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
      Scenarios.writeWhileServersDie(others, again(redis), redis::get);
    });
    scenarios.test("servers die: their own client goes on when they are back", () -> {
      var own = ports(ONE.getPort()).subList(0, 1);
      Scenarios.writeWhileServersDie(own, again(redis), redis::get);
    });
    scenarios.test("servers die: a cluster client sees a delay", () -> {
      var ports = ports(Scenarios.CLUSTER_PORT);
      var refresh = ClusterTopologyRefreshOptions.builder();
      refresh.enablePeriodicRefresh(Duration.ofSeconds(1));
      try (var own = RedisClusterClient.create(NODE)) {
        own.setOptions(
            ClusterClientOptions.builder().topologyRefreshOptions(refresh.build()).build());
        var commands = own.connect().sync();
        Scenarios.writeWhileServersDie(ports, again(commands), commands::get);
      }
    });
    scenarios.test("servers die: a cluster client of old knowledge still finds all keys", () -> {
      ports(Scenarios.CLUSTER_PORT);
      writeAndRead(cluster);
      nodes.refreshPartitions();
      long moved = moved();
      writeAndRead(cluster);
      equal(moved(), moved);
    });
  }

  /**
   * Writes a key again when it is told that its connection was lost, or that it is not known
   * whether it was written. All threads share one connection. When it is reset, lettuce gives up
   * one of the commands that are under way, and sends the others again. It closes the connection to
   * a node that CLUSTER NODES names no more, and gives up what waits there.
   */
  private static Scenarios.Writer again(RedisClusterCommands<String, String> commands) {
    return (key, value) -> {
      for (;;) {
        try {
          equal(commands.set(key, value), "OK");
          return;
        } catch (RedisException error) {
          String text = String.valueOf(error.getMessage());
          boolean lost = text.matches(".*Connection (reset|closed|is closed).*");
          if (!lost && !text.startsWith("TRYAGAIN") && !text.startsWith("ERR it is not known")) {
            throw error;
          }
          System.out.println("again, as " + text);
        }
      }
    };
  }

  private static List<Integer> ports(int first) throws Exception {
    return Scenarios.ports(first, cluster.clusterNodes().split("\n").length);
  }

  private static void writeAndRead(RedisClusterCommands<String, String> commands)
      throws Exception {
    Scenarios.together(8, at -> {
      for (int i = 0; i < 1000; i += 1) {
        equal(commands.set("k" + at + ":" + i, String.valueOf(i)), "OK");
      }
      for (int i = 0; i < 1000; i += 1) {
        equal(commands.get("k" + at + ":" + i), String.valueOf(i));
      }
    }).get();
  }

  /** A connection to the owner of a key. */
  private static RedisCommands<String, String> own(String key) {
    var owner = nodes.getPartitions().getPartitionBySlot(SlotHash.getSlot(key));
    return shared.getConnection(owner.getNodeId()).sync();
  }

  /** How many commands all nodes together sent elsewhere. */
  private static long moved() {
    long moved = 0;
    for (var node : nodes.getPartitions()) {
      String info = shared.getConnection(node.getNodeId()).sync().info("errorstats");
      moved += Scenarios.counted(info, "errorstat_MOVED");
    }
    return moved;
  }
}
