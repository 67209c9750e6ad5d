package pluvio;

import java.io.IOException;
import java.io.PrintStream;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Pattern;
import java.util.stream.IntStream;

/** Runs scenarios in their order, and writes a line for each, with what came of it. */
final class Scenarios {
  /** The port for cluster clients of the first server. */
  static final int CLUSTER_PORT = 7001;

  /** A scenario that takes longer has failed: it waits for something that does not come. */
  private static final Duration LIMIT = Duration.ofSeconds(90);

  /** A library of functions. */
  static final String LIBRARY =
      "#!lua name=mine\n"
          + "redis.register_function('twice', "
          + "function(keys) return redis.call('GET', keys[1]) * 2 end)";

  /** A script that changes a value if it is the one that the caller knows. */
  static final String CHANGE_IF_EQUAL =
      "if redis.call('GET', KEYS[1]) == ARGV[1] then"
          + " redis.call('SET', KEYS[1], ARGV[2]) return 1 end return 0";

  interface Scenario {
    void run() throws Exception;
  }

  /** A scenario ends with it where it makes no sense. */
  static final class Skipped extends RuntimeException {
    Skipped(String why) {
      super(why);
    }
  }

  private final Map<String, Scenario> all = new LinkedHashMap<>();

  void test(String name, Scenario scenario) {
    all.put(name, scenario);
  }

  /** Runs them all, `before` ahead of each, then ends this process. */
  void run(Scenario before) throws IOException {
    Path results = Path.of(System.getenv("PLUVIO_RESULTS"));
    try (PrintStream out = new PrintStream(Files.newOutputStream(results))) {
      for (Map.Entry<String, Scenario> each : all.entrySet()) {
        long began = System.nanoTime();
        String outcome = outcome(before, each.getValue());
        long ms = (System.nanoTime() - began) / 1_000_000;
        System.out.println(outcome + " in " + ms + " ms: " + each.getKey());
        out.println(outcome + "\t" + each.getKey());
        out.flush();
      }
    }
    System.exit(0);
  }

  private static String outcome(Scenario before, Scenario scenario) {
    try {
      together(1, at -> {
        before.run();
        scenario.run();
      }).get(LIMIT.toSeconds(), TimeUnit.SECONDS);
      return "passed";
    } catch (TimeoutException late) {
      System.out.println("not done after " + LIMIT);
      for (var thread : Thread.getAllStackTraces().entrySet()) {
        System.out.println(thread.getKey() + " " + List.of(thread.getValue()));
      }
      return "failed";
    } catch (ExecutionException failed) {
      if (failed.getCause() instanceof Skipped) {
        System.out.println(failed.getCause().getMessage());
        return "skipped";
      }
      failed.getCause().printStackTrace(System.out);
      return "failed";
    } catch (InterruptedException never) {
      return "failed";
    }
  }

  interface Part {
    void run(int at) throws Exception;
  }

  /** Runs a part in each of `threads` threads; done when all are, or when one has failed. */
  static CompletableFuture<Void> together(int threads, Part part) {
    var all = new CompletableFuture<Void>();
    var parts = new ArrayList<CompletableFuture<Void>>();
    var executor = Executors.newFixedThreadPool(threads, task -> {
      var thread = new Thread(task);
      thread.setDaemon(true);
      return thread;
    });
    for (int thread = 0; thread < threads; thread += 1) {
      int at = thread;
      var done = new CompletableFuture<Void>();
      parts.add(done);
      executor.execute(() -> {
        try {
          part.run(at);
          done.complete(null);
        } catch (Throwable failed) {
          done.completeExceptionally(failed);
          all.completeExceptionally(failed);
        }
      });
    }
    executor.shutdown();
    CompletableFuture.allOf(parts.toArray(CompletableFuture[]::new))
        .thenAccept(all::complete);
    return all;
  }

  static void check(boolean is, String what) {
    if (!is) {
      throw new AssertionError(what);
    }
  }

  static void equal(Object is, Object wanted) {
    check(Objects.equals(is, wanted), "it is " + is + ", not " + wanted);
  }

  /** Checks that it throws an error with such a text, also as a cause. */
  static void refused(String text, Callable<?> call) {
    Object reply;
    try {
      reply = call.call();
    } catch (Exception error) {
      for (Throwable at = error; at != null; at = at.getCause()) {
        if (Pattern.compile(text).matcher(String.valueOf(at.getMessage())).find()) {
          return;
        }
      }
      throw new AssertionError("it is not refused with " + text, error);
    }
    throw new AssertionError("it is not refused with " + text + ", but gives " + reply);
  }

  /** What a server counted in a line of INFO; 0 without such a line. */
  static long counted(String info, String field) {
    var found = Pattern.compile("(?m)^" + field + "[:=](?:count=)?(\\d+)").matcher(info);
    return found.find() ? Long.parseLong(found.group(1)) : 0;
  }

  /** Ports of servers that follow each other, for a scenario in which several of ours die. */
  static List<Integer> ports(int first, int servers) throws IOException {
    if (servers == 1 || server(CLUSTER_PORT).isEmpty()) {
      throw new Skipped("it needs several servers of ours");
    }
    return IntStream.range(first, first + servers).boxed().toList();
  }

  /**
   * Kills the server that listens there, with SIGKILL. `pluvio dev --respawn` starts it again.
   *
   * <p>Only servers in the network namespace of the suite are looked at.
   */
  static void killServer(int port) throws Exception {
    server(port).orElseThrow().destroyForcibly();
  }

  /** The process that listens there, if it is a server of ours. */
  static Optional<ProcessHandle> server(int port) throws IOException {
    Path namespace = Files.readSymbolicLink(Path.of("/proc/self/ns/net"));
    return ProcessHandle.allProcesses().filter(process -> {
      Path folder = Path.of("/proc/" + process.pid());
      try {
        var words = List.of(Files.readString(folder.resolve("cmdline")).split("\0"));
        return words.size() > 1
            && words.get(1).equals("server")
            && words.contains("127.0.0.1:" + port)
            && Files.readSymbolicLink(folder.resolve("ns/net")).equals(namespace);
      } catch (IOException gone) {
        return false;
      }
    }).findFirst();
  }

  interface Writer {
    /** Writes a key, or throws. */
    void write(String key, String value) throws Exception;
  }

  interface Reader {
    String read(String key) throws Exception;
  }

  /** Writes of each thread before a kill, and after it. */
  private static final int STEPS = 200;

  /**
   * Writes with four threads while the servers of `ports` are killed one after the other. Each is
   * started again before the next. Then it reads all that was acknowledged.
   */
  static void writeWhileServersDie(List<Integer> ports, Writer writer, Reader reader)
      throws Exception {
    int threads = 4;
    var done = new AtomicIntegerArray(threads);
    var longest = new AtomicLong();
    var stop = new AtomicBoolean();
    var writing = together(threads, at -> {
      while (!stop.get()) {
        int step = done.get(at);
        long began = System.nanoTime();
        writer.write("w" + at + ":" + step, String.valueOf(step));
        longest.accumulateAndGet(System.nanoTime() - began, Math::max);
        done.incrementAndGet(at);
      }
    });
    try {
      for (int port : ports) {
        longest.set(0);
        more(done, writing);
        killServer(port);
        more(done, writing);
        while (server(port).isEmpty() || !answers(port)) {
          check(!writing.isDone(), "the writers have ended");
          Thread.onSpinWait();
        }
        more(done, writing);
        long ms = longest.get() / 1_000_000;
        System.out.println("the longest write while that of " + port + " died: " + ms + " ms");
      }
    } finally {
      stop.set(true);
    }
    writing.get();
    for (int at = 0; at < threads; at += 1) {
      for (int step = 0; step < done.get(at); step += 1) {
        equal(reader.read("w" + at + ":" + step), String.valueOf(step));
      }
    }
  }

  /** Waits until each writer has done some more. */
  private static void more(
      AtomicIntegerArray done, CompletableFuture<Void> writing)
      throws Exception {
    for (int at = 0; at < done.length(); at += 1) {
      int until = done.get(at) + STEPS;
      while (done.get(at) < until) {
        if (writing.isDone()) {
          writing.get();
        }
        Thread.sleep(1);
      }
    }
  }

  private static boolean answers(int port) {
    try (var socket = new Socket("127.0.0.1", port)) {
      socket.getOutputStream().write("PING\r\n".getBytes());
      return socket.getInputStream().read() == '+';
    } catch (IOException notYet) {
      return false;
    }
  }
}
