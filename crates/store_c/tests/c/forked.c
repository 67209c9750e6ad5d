// Forks with an open reader, and goes on with it on both sides. The other process changes the keys
// meanwhile, and makes the table "later" once it has read a line with two numbers of processes.

#define _GNU_SOURCE
#include "checks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 30

static pluvio_reader reader;
static pluvio_mapped_table table;
static atomic_bool over;

static void *work(void *argument) {
    static _Thread_local uint8_t value[VALUE_MAX];
    for (int at = 0; !atomic_load(&over); at++) get(table, at % 50, value);
    return argument;
}

// Reads on as its parent does, whatever the parent's threads were doing.
static void read_on(void) {
    static uint8_t value[VALUE_MAX];
    for (int at = 0; at < 300; at++) get(table, at % 50, value);
}

// Asks the owner for a map.
static void ask(void) {
    pluvio_mapped_table none;
    GIVES(PLUVIO_NO_TABLE, pluvio_reader_table(reader, "none", &none));
}

static void read_later(void) {
    static uint8_t value[VALUE_MAX];
    pluvio_mapped_table later;
    OK(pluvio_reader_table(reader, "later", &later));
    CHECK(get(later, 1, value) == 77);
    OK(pluvio_mapped_table_close(later));
    get(table, 1, value);
}

static void ends_well(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int count, char **words) {
    CHECK(count == 2);
    OK(pluvio_reader_open(words[1], &reader));
    OK(pluvio_reader_table(reader, "towns", &table));

    pthread_t running[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&running[i], NULL, work, NULL) == 0);
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            read_on();
            _exit(0);
        }
    }
    for (int i = 0; i < CHILDREN; i++) ends_well(children[i]);
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(running[i], NULL) == 0);

    int up[2], down[2];
    CHECK(pipe(up) == 0 && pipe(down) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    char byte = 0;
    if (child == 0) {
        CHECK(close(down[1]) == 0);
        read_on();
        ask();
        read_on();
        CHECK(write(up[1], &byte, 1) == 1);
        CHECK(read(down[0], &byte, 1) == 1);
        read_later();
        ask();
        CHECK(write(up[1], &byte, 1) == 1);
        // It stays until the parent has gone on, or has failed.
        CHECK(read(down[0], &byte, 1) >= 0);
        _exit(0);
    }
    CHECK(close(up[1]) == 0);
    CHECK(read(up[0], &byte, 1) == 1);
    printf("%d %d\n", getpid(), child);
    fflush(stdout);
    CHECK(getchar() == '\n');
    CHECK(write(down[1], &byte, 1) == 1);
    read_later();
    ask();
    CHECK(read(up[0], &byte, 1) == 1);
    printf("both\n");
    fflush(stdout);
    CHECK(getchar() == '\n');
    CHECK(close(down[1]) == 0);
    ends_well(child);
    // Its end is no end of ours.
    ask();
    read_on();
    printf("all is well\n");
    fflush(stdout);
    CHECK(getchar() == EOF);
    return 0;
}
