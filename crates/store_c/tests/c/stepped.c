// Stops a reader after each of many instructions of one get. The other process reads "at STEP",
// overwrites all memory, and sends a line. Then the reader is killed, or goes on.

#define _GNU_SOURCE
#include "checks.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define STOPS 30
#define STEPS_MAX 1000000L
// Exit codes of the reader.
#define OLD 10
#define NEW 11

// Gets one key between two stops of its own. Its value never goes back.
static void reads_once(const char *door) {
    static uint8_t value[VALUE_MAX];
    pluvio_reader reader;
    pluvio_mapped_table table;
    CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
    OK(pluvio_reader_open(door, &reader));
    OK(pluvio_reader_table(reader, "towns", &table));
    uint8_t before = 0;
    for (int at = 0; at < 20; at++) before = get(table, 7, value);
    size_t size = 0;
    raise(SIGSTOP);
    pluvio_code code =
        pluvio_mapped_get(table, bytes("key 7"), 5, value, sizeof value, &size, NULL);
    raise(SIGSTOP);
    uint8_t after = value[0];
    if (code == PLUVIO_OK)
        is_whole(value, size);
    else
        // The owner gets no processor.
        after = get(table, 7, value);
    // Fewer than 128 rounds lie between.
    CHECK((uint8_t)(after - before) < 128);
    _exit(after == before ? OLD : NEW);
}

static int next_stop(pid_t reader) {
    int status;
    CHECK(waitpid(reader, &status, 0) == reader);
    CHECK(WIFSTOPPED(status));
    return WSTOPSIG(status);
}

// A reader that is about to get.
static pid_t begin(const char *door) {
    pid_t reader = fork();
    CHECK(reader >= 0);
    if (reader == 0) reads_once(door);
    CHECK(next_stop(reader) == SIGSTOP);
    CHECK(ptrace(PTRACE_SETOPTIONS, reader, NULL, PTRACE_O_EXITKILL) == 0);
    return reader;
}

// Lets it do that many instructions, or all up to the end of the get; gives how many it did.
static long step(pid_t reader, long steps, int *signal) {
    *signal = SIGTRAP;
    for (long done = 0; done < steps; done++) {
        CHECK(ptrace(PTRACE_SINGLESTEP, reader, NULL, NULL) == 0);
        *signal = next_stop(reader);
        if (*signal == SIGSTOP) return done;
        CHECK(*signal == SIGTRAP);
    }
    return steps;
}

// Lets it go on to its end, from the end of the get or before it.
static int end(pid_t reader, int signal) {
    if (signal != SIGSTOP) {
        CHECK(ptrace(PTRACE_CONT, reader, NULL, NULL) == 0);
        CHECK(next_stop(reader) == SIGSTOP);
    }
    CHECK(ptrace(PTRACE_CONT, reader, NULL, NULL) == 0);
    int status;
    CHECK(waitpid(reader, &status, 0) == reader);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

int main(int count, char **words) {
    CHECK(count == 2);
    int signal;
    pid_t reader = begin(words[1]);
    long all = step(reader, STEPS_MAX, &signal);
    CHECK(signal == SIGSTOP && all > STOPS);
    CHECK(end(reader, signal) == OLD);
    for (int stop = 0; stop <= STOPS; stop++) {
        reader = begin(words[1]);
        long done = step(reader, all * stop / STOPS, &signal);
        printf("at %ld\n", done);
        fflush(stdout);
        CHECK(getchar() == '\n');
        if (stop % 4 == 3) {
            int status;
            CHECK(kill(reader, SIGKILL) == 0);
            CHECK(waitpid(reader, &status, 0) == reader && WIFSIGNALED(status));
            printf("killed\n");
        } else {
            int code = end(reader, signal);
            CHECK(code == OLD || code == NEW);
            printf(code == OLD ? "old\n" : "new\n");
        }
        fflush(stdout);
    }
    printf("all is well\n");
    return 0;
}
